"""Finds cells and plans for figures."""

import math
from collections.abc import Sequence

from .cell import Cell, PlanRun
from .labels import OURS


def line_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Of one mesh axis, and without a limit: the grid."""
    return [cell for cell in cells if len(cell.spec.mesh) == 1 and not cell.spec.has_limit]


def first_cell(cells: Sequence[Cell], model: str) -> Cell | None:
    """The first of a model in the grid, rather one with all strategies, or else with some."""
    found = [cell for cell in line_cells(cells) if cell.spec.model == model]
    return max(found, key=lambda cell: math.inf if (count := cell.spec.num_strategies) is None else count, default=None)


def are_some_strategies(cell: Cell) -> bool:
    """Whether a part of the strategies of the layers was run, and not all."""
    return cell.spec.num_strategies is not None and cell.spec.num_strategies > 0


def models_of(cells: Sequence[Cell]) -> list[str]:
    """In the order in which they ran."""
    return list(dict.fromkeys(cell.spec.model for cell in cells))


def compared_run(cell: Cell, name: str) -> PlanRun | None:
    """A plan by its name; `chosen` is the one that the search chose."""
    return cell.best if name == OURS else cell.run(name)


def compared_s(cell: Cell, name: str) -> float | None:
    """Its measured time."""
    run = compared_run(cell, name)
    return None if run is None else run.measured_s
