"""Figure 14: the configurations of the plan of minimum volume and of the chosen one, block by block."""

from collections.abc import Sequence

from jaxquard.evaluate.cfp.cells.cell import Cell
from jaxquard.evaluate.cfp.cells.labels import (
    CHOICE_COLORS,
    OURS,
    PLAN_LABELS,
    SEARCHED,
    chosen_words,
    model_label,
    size_label,
)
from jaxquard.evaluate.cfp.cells.pick import compared_run, first_cell
from jaxquard.report.charts.tile_chart import TileGroup, tile_chart

MODELS = ("moe", "llama")


def figure_14(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that are drawn."""
    found = [first_cell(cells, model) for model in MODELS]
    return [cell for cell in found if cell is not None]


def draw_figure_14(cells: Sequence[Cell]) -> list[str]:
    """A chart a cell: a row a plan, a tile a block."""
    charts = []
    for cell in cells:
        rows = []
        for name in ("volume", OURS):
            run = compared_run(cell, name)
            if run is not None:
                label = PLAN_LABELS[name].split(" (")[0] if name != OURS else _ours(cell)
                rows.append((label, ["/".join(names) for names in run.choices]))
        title = f"{model_label(cell.spec.model)}, {cell.spec.num_layers} layers, {size_label(cell.spec)}"
        if rows:
            charts.append(tile_chart(title, _groups(cell), rows, colors=CHOICE_COLORS))
    return charts


def _ours(cell: Cell) -> str:
    words = chosen_words(cell)
    if words.startswith(SEARCHED):
        return words.replace(SEARCHED, "chosen", 1)
    return f"chosen: {words.split(' (')[0]}"


def _groups(cell: Cell) -> list[TileGroup]:
    groups: dict[int, list[str]] = {}
    for block in cell.blocks:
        groups.setdefault(block.segment, []).append(block.weight)
    return [TileGroup(name=f"segment {number}", headings=tuple(names)) for number, names in groups.items()]
