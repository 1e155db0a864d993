"""Cells to JSON and back."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxquard.errors import JaxquardError
from jaxquard.evaluate.cfp.cell import BlockInfo, Cell, PlanRun, Role, Seconds
from jaxquard.evaluate.cfp.cell_spec import CellSpec
from jaxquard.evaluate.cfp.depths import Depth

SCHEMA = "jaxquard.reproduce.cfp"
VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All that was run, in the order in which it was.

    Attributes:
        depths: analysis and search by depth (Figure 13).
    """

    cells: tuple[Cell, ...] = ()
    depths: tuple[Depth, ...] = ()


def without_quick_cells(results: Results) -> Results:
    """What a figure may put together: the cells of quick runs only if there are no others."""
    full = tuple(cell for cell in results.cells if not cell.spec.is_thin)
    return dataclasses.replace(results, cells=full or results.cells)


def results_text(results: Results) -> str:
    """JSON with a schema's name and version."""
    content = {
        "schema": SCHEMA,
        "version": VERSION,
        "cells": [dataclasses.asdict(cell) for cell in results.cells],
        "depths": [dataclasses.asdict(depth) for depth in results.depths],
    }
    return json.dumps(content, indent=1, default=_write_other) + "\n"


def read_results(path: Path) -> Results:
    """Reads what `results_text` wrote.

    Raises:
        JaxquardError: if the file is not there, or is something else.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise JaxquardError(f"cannot read {path} ({error.strerror}). Give the file of an earlier run.") from None
    except ValueError:
        raise JaxquardError(f"{path} is no JSON. Give the file that an earlier --json wrote.") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA or content.get("version") != VERSION:
        raise JaxquardError(
            f"{path} is no results of `jaxquard reproduce cfp`: expected the schema {SCHEMA}, version {VERSION}, but "
            f"found {schema}. Give the file that an earlier --json wrote, or another name for a new one."
        )
    try:
        return Results(
            cells=tuple(map(_read_cell, content["cells"])),
            depths=tuple(Depth(**depth) for depth in content["depths"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise JaxquardError(f"{path} was changed or cut off: {error}. Remove it, and run again.") from None


def _write_other(value: Any) -> Any:
    assert isinstance(value, Role)
    return value.value


def _read_cell(content: Mapping[str, Any]) -> Cell:
    return _make(
        Cell,
        content,
        spec=lambda spec: _make(CellSpec, spec, mesh=tuple),
        runs=lambda runs: tuple(_make(PlanRun, run, role=Role, choices=_read_names) for run in runs),
        blocks=lambda blocks: tuple(_make(BlockInfo, block, names=tuple) for block in blocks),
        seconds=lambda seconds: _make(Seconds, seconds),
    )


def _make(made: Callable[..., Any], content: Mapping[str, Any], **readers: Callable[[Any], Any]) -> Any:
    return made(**{name: readers[name](value) if name in readers else value for name, value in content.items()})


def _read_names(names: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(map(tuple, names))
