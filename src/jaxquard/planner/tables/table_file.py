"""A table of a step's costs on a mesh as the bytes of a file: names as JSON, numbers as arrays, in one `.npz`.

What several segments share is written once, and is one object again when it is read: a search handles equal segments
together.
"""

import io
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxquard.gemm.problem import LayerPlan
from jaxquard.intraop.segments.block_names import BlockNames
from jaxquard.intraop.segments.strategies import Strategy
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.ir.codec import from_data, to_data
from jaxquard.planner.prices.step_costs import StepCosts
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.stages.segment_costs import COUNTS, SECONDS, CostTable, SegmentCosts
from jaxquard.planner.tables.mesh_prices import CostsKey, MeshAxes, MeshFacts

_NAMES = tuple(BlockNames.__dataclass_fields__)
# All that reading a file of any content can raise; RuntimeError for one that says that it is encrypted.
DAMAGE = (
    *(OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, NotImplementedError, OverflowError, RuntimeError),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshTable:
    """The prices of a step on a mesh, as a file has them.

    Attributes:
        facts: None if there are no prices.
        costs: by storage and recomputation.
        failure: why there are no prices; "" if there are.
    """

    facts: MeshFacts | None = None
    costs: Mapping[CostsKey, StepCosts] = field(default_factory=dict, repr=False)
    failure: str = ""


def write_table(table: MeshTable, *, names: str) -> bytes:
    """Returns the bytes of a table.

    Args:
        names: the key under which the names of its blocks are kept.
    """
    if table.facts is None:
        return _pack({"failure": table.failure}, {})
    strategies, reshards, rows = _Shared(), _Shared(), list[CostTable]()
    costs = [
        {"storage": storage.value, "recompute": recompute.value, **_costs_data(found, strategies, reshards, rows)}
        for (storage, recompute), found in table.costs.items()
    ]
    header = {
        "names": names,
        "facts": _facts_data(table.facts, strategies),
        "costs": costs,
        "strategies": strategies.values,
        "reshards": [array.shape for array in reshards.values],
    }
    arrays = {
        "seconds": np.concatenate([np.zeros((0, len(SECONDS))), *(one.seconds for one in rows)]),
        "counts": np.concatenate([np.zeros((0, len(COUNTS)), np.int64), *(one.counts for one in rows)]),
        "reshards": np.concatenate([np.zeros(0), *(array.ravel() for array in reshards.values)]),
    }
    return _pack(header, arrays)


def read_table(content: bytes, *, axes: MeshAxes, find_names: Callable[[str], Mapping[int, BlockNames]]) -> MeshTable:
    """Returns the table of a file; one of `DAMAGE` is raised if the file is none.

    Args:
        find_names: returns the names of blocks under a key.
    """
    header, arrays = _unpack(content)
    if "failure" in header:
        return MeshTable(failure=str(header["failure"]))
    strategies = [tuple(map(_read_strategy, found)) for found in header["strategies"]]
    blocks = tuple(map(tuple, header["facts"]["blocks"]))
    segments = _SegmentReader(header, arrays)
    costs = {
        (Storage(found["storage"]), Recompute(found["recompute"])): StepCosts(
            segments=segments.read(found),
            strategies=tuple(strategies[number] for number in found["strategies"]),
            blocks=blocks,
            axes=dict(axes),
        )
        for found in header["costs"]
    }
    return MeshTable(facts=_read_facts(header, blocks, strategies, find_names(header["names"])), costs=costs)


def write_names(names: Mapping[int, BlockNames]) -> bytes:
    """Returns the bytes of the names of blocks."""
    data = {number: [list(getattr(found, part)) for part in _NAMES] for number, found in names.items()}
    return json.dumps(data, separators=(",", ":")).encode()


def read_names(content: bytes) -> dict[int, BlockNames]:
    """Returns the names of blocks of a file; one of `DAMAGE` is raised if the file is none."""
    return {
        int(number): BlockNames(**{name: tuple(part) for name, part in zip(_NAMES, parts, strict=True)})
        for number, parts in json.loads(content).items()
    }


class _Shared:
    """Numbers values, equal ones alike."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: Any, key: Hashable | None = None) -> int:
        """Returns the number of a value; a key stands for one without a hash."""
        key = value if key is None else key
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


def _facts_data(facts: MeshFacts, strategies: _Shared) -> dict[str, Any]:
    choices, products = _Shared(), _Shared()
    recipes = {
        name: {block: choices.number(tuple(choice)) for block, choice in assignment.items()}
        for name, assignment in facts.recipes.items()
    }
    of_blocks = {block: products.number(plans) for block, plans in facts.products.items()}
    return {
        "blocks": facts.blocks,
        "strategies": [strategies.number(facts.strategies[blocks]) for blocks in facts.blocks],
        "can_begin_stage": facts.can_begin_stage,
        "choices": choices.values,
        "recipes": recipes,
        "layer_plans": [to_data(plans) for plans in products.values],
        "products": of_blocks,
        "row_chunks": facts.row_chunks,
        "provenance": facts.provenance,
        "num_programs": facts.num_programs,
    }


def _read_facts(
    header: Mapping[str, Any],
    blocks: tuple[tuple[int, ...], ...],
    strategies: Sequence[tuple[Strategy, ...]],
    names: Mapping[int, BlockNames],
) -> MeshFacts:
    data = header["facts"]
    choices = list(map(tuple, data["choices"]))
    plans = [from_data(tuple[LayerPlan, ...], found, where="a table") for found in data["layer_plans"]]
    return MeshFacts(
        blocks=blocks,
        strategies={of: strategies[number] for of, number in zip(blocks, data["strategies"], strict=True)},
        names=names,
        can_begin_stage={int(segment): can for segment, can in data["can_begin_stage"].items()},
        recipes={
            name: {int(block): choices[number] for block, number in assignment.items()}
            for name, assignment in data["recipes"].items()
        },
        products={int(block): plans[number] for block, number in data["products"].items()},
        row_chunks={int(block): count for block, count in data["row_chunks"].items()},
        provenance=data["provenance"],
        num_programs=data["num_programs"],
    )


def _costs_data(costs: StepCosts, strategies: _Shared, reshards: _Shared, rows: list[CostTable]) -> dict[str, Any]:
    """Returns costs as numbers of what they share, and adds what is new."""
    segments = _Shared()
    places = [segments.number(one, id(one)) for one in costs.segments]
    made, num_rows = [], sum(map(len, rows))
    for one in segments.values:
        table = None if one.reshards_s is None else reshards.number(one.reshards_s, id(one.reshards_s))
        made.append([one.kind, one.input_bytes, one.can_begin_stage, table, num_rows, len(one.costs)])
        rows.append(one.costs)
        num_rows += len(one.costs)
    return {"segments": places, "made": made, "strategies": [strategies.number(found) for found in costs.strategies]}


class _SegmentReader:
    """Reads the costs of segments."""

    def __init__(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._rows = CostTable(arrays["seconds"], arrays["counts"])
        self._reshards, start = list[np.ndarray](), 0
        for shape in header["reshards"]:
            stop = start + math.prod(shape)
            self._reshards.append(arrays["reshards"][start:stop].reshape(shape))
            start = stop

    def read(self, data: Mapping[str, Any]) -> tuple[SegmentCosts, ...]:
        """Returns the costs of all segments for one storage and recomputation."""
        made = [
            SegmentCosts(
                kind=kind,
                strategies=self._rows[start : start + count],
                reshards_s=None if table is None else self._reshards[table],
                input_bytes=input_bytes,
                can_begin_stage=can_begin,
            )
            for kind, input_bytes, can_begin, table, start, count in data["made"]
        ]
        return tuple(made[place] for place in data["segments"])


def _read_strategy(data: Sequence[Sequence[str]]) -> Strategy:
    return tuple(map(tuple, data))


def _pack(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    buffer = io.BytesIO()
    parts: dict[str, Any] = {"header": np.frombuffer(text, np.uint8), **arrays}
    np.savez_compressed(buffer, **parts)
    return buffer.getvalue()


def _unpack(content: bytes) -> tuple[Mapping[str, Any], Mapping[str, np.ndarray]]:
    """Returns the header and the arrays; the checksums of the file hold for all of them."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(arrays.pop("header").tobytes()), arrays
