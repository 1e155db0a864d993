"""Finds cells and plans for figures."""

import math
from collections.abc import Sequence

from jaxquard.evaluate.cfp.cells.cell import Cell, PlanRun
from jaxquard.evaluate.cfp.cells.labels import OURS

# Figure 9 shows this many configurations, in the order of their volume.
NUM_BY_VOLUME = 20


def line_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Returns the cells of the grid: one mesh axis, no limit, the model's smallest depth."""
    deep = deep_cells(cells)
    return [cell for cell in _on_a_line(cells) if cell not in deep]


def deep_cells(cells: Sequence[Cell]) -> list[Cell]:
    """The same, but deeper than others of the model: their predictions are no measurements of the whole."""
    found = _on_a_line(cells)
    smallest: dict[str, int] = {}
    for spec in (cell.spec for cell in found):
        smallest[spec.model] = min(spec.num_layers, smallest.get(spec.model, spec.num_layers))
    return [cell for cell in found if cell.spec.num_layers > smallest[cell.spec.model]]


def _on_a_line(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if len(cell.spec.mesh) == 1 and not cell.spec.has_limit]


def first_cell(cells: Sequence[Cell], model: str) -> Cell | None:
    """The first of a model in the grid, rather one with all strategies, or else with some."""
    found = [cell for cell in line_cells(cells) if cell.spec.model == model]
    return max(found, key=lambda cell: math.inf if (count := cell.spec.num_strategies) is None else count, default=None)


def are_some_strategies(cell: Cell) -> bool:
    """Returns whether some of the layers' strategies were run, and not all."""
    return cell.spec.num_strategies is not None and cell.spec.num_strategies > 0


def models_of(cells: Sequence[Cell]) -> list[str]:
    """Returns the models of cells, in the order in which they ran."""
    return list(dict.fromkeys(cell.spec.model for cell in cells))


def compared_run(cell: Cell, name: str) -> PlanRun | None:
    """A plan by its name; `chosen` is the one that the search chose."""
    return cell.best if name == OURS else cell.run(name)


def compared_s(cell: Cell, name: str) -> float | None:
    """The time of its whole step."""
    run = compared_run(cell, name)
    return None if run is None else run.whole_s
