"""Figure 12: what compiling and running the programs of a search takes, added up and as it is done."""

from collections.abc import Sequence

from jaxquard.evaluate.cfp.cells.cell import Cell
from jaxquard.evaluate.cfp.cells.labels import model_label, size_label
from jaxquard.evaluate.cfp.cells.pick import line_cells, models_of
from jaxquard.evaluate.common.numbers import digits
from jaxquard.report.charts.bar_chart import Bar, Series, bar_chart

_PARTS = (
    ("compiling, all compilers added up", "#e0a93b"),
    ("running", "#2a9d8f"),
    ("both, as done", "#2f62b5"),
)


def priced_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Returns the grid's cells whose prices were measured for them, so that their seconds are those of a search."""
    return [cell for cell in line_cells(cells) if cell.is_measured_anew and cell.seconds.compiled is not None]


def draw_figure_12(cells: Sequence[Cell]) -> list[str]:
    """A chart a model, its sizes side by side."""
    charts = []
    for model in models_of(priced_cells(cells)):
        mine = [cell for cell in priced_cells(cells) if cell.spec.model == model]
        columns = [(cell.seconds.compiled or 0.0, cell.seconds.profiled or 0.0, cell.seconds.priced) for cell in mine]
        series = [
            Series(
                name=name,
                color=color,
                bars=tuple(
                    Bar(value=values[part], hint=f"{name}, {cell.spec.name}, {cell.num_programs} programs")
                    for cell, values in zip(mine, columns, strict=True)
                ),
            )
            for part, (name, color) in enumerate(_PARTS)
        ]
        charts.append(
            bar_chart(
                model_label(model),
                [size_label(cell.spec) for cell in mine],
                series,
                value_name="seconds",
                show=digits,
                show_tick=lambda value: f"{value:g}",
            )
        )
    return charts
