"""Figure 7: throughput of the chosen plan, of data parallelism, of Megatron and of the plan of minimum volume."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.evaluate.cfp.cells.cell import Cell
from jaxquard.evaluate.cfp.cells.cell_step import num_tokens
from jaxquard.evaluate.cfp.cells.labels import (
    COMPARED,
    OURS,
    PLAN_COLORS,
    PLAN_LABELS,
    cell_label,
    chosen_words,
    model_label,
    size_label,
)
from jaxquard.evaluate.cfp.cells.pick import compared_s, models_of
from jaxquard.evaluate.cfp.cells.targets import behind_best, geometric_mean
from jaxquard.evaluate.common.numbers import digits, mesh_label, milliseconds, ratio
from jaxquard.report.charts.bar_chart import Bar, Series, bar_chart
from jaxquard.report.html_page import html_table

PLANS = (OURS, *COMPARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedups:
    """Speedups of the chosen plan over another one, over cells; empty where none ran."""

    over: str
    ratios: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return geometric_mean(self.ratios) if self.ratios else None

    @property
    def most(self) -> float | None:
        return max(self.ratios, default=None)


def speedups(cells: Sequence[Cell], over: str) -> Speedups:
    """Returns the other plan's time over the chosen one's; a plan over a cell's limit does not count."""
    found = []
    for cell in cells:
        ours, other = compared_s(cell, OURS), cell.run(over)
        if ours is not None and other is not None and other.whole_s is not None and cell.fits(other):
            found.append(other.whole_s / ours)
    return Speedups(over=over, ratios=tuple(found))


def draw_throughputs(cells: Sequence[Cell]) -> list[str]:
    """A chart a model, its sizes side by side."""
    charts = []
    for model in models_of(cells):
        mine = [cell for cell in cells if cell.spec.model == model]
        charts.append(_draw(model_label(model), mine, [size_label(cell.spec) for cell in mine]))
    return charts


def draw_meshes(cells: Sequence[Cell]) -> list[str]:
    """A chart for each model and size that ran on meshes of several shapes."""
    charts = []
    for model in models_of(cells):
        mine = [cell for cell in cells if cell.spec.model == model]
        for size in dict.fromkeys(_size(cell) for cell in mine if len(cell.spec.mesh) > 1):
            alike = [cell for cell in mine if _size(cell) == size]
            title = f"{model_label(model)}, {alike[0].spec.model_dim} wide, batch {alike[0].spec.batch_size}"
            charts.append(_draw(title, alike, [mesh_label(cell.spec.mesh) for cell in alike]))
    return charts


def _size(cell: Cell) -> tuple[int, int, int]:
    return cell.spec.num_layers, cell.spec.model_dim, cell.spec.batch_size


def throughput_table(cells: Sequence[Cell]) -> str:
    """Every cell: the chosen plan, and how many times as long others take."""
    rows = []
    for cell in cells:
        ours, behind = compared_s(cell, OURS), behind_best(cell)
        names = [name for name in PLAN_LABELS if name != OURS]
        rows.append(
            [
                cell_label(cell.spec),
                chosen_words(cell),
                "-" if ours is None else milliseconds(ours),
                *(_beside(cell, name, ours) for name in names),
                "-" if behind is None else f"{100 * behind:.1f} %",
            ]
        )
    header = ["cell", "chosen plan", "its time", *(PLAN_LABELS[name] for name in PLAN_LABELS if name != OURS)]
    return html_table([*header, "behind the best of all"], rows, words=(0, 1))


def _beside(cell: Cell, name: str, ours: float | None) -> str:
    run = cell.run(name)
    if run is None or run.whole_s is None or ours is None:
        return "-"
    return ratio(run.whole_s / ours) + ("" if cell.fits(run) else ", too large")


def _draw(title: str, cells: Sequence[Cell], groups: Sequence[str]) -> str:
    series = []
    for name in PLANS:
        times_s = [compared_s(cell, name) for cell in cells]
        bars = tuple(
            None
            if time_s is None
            else Bar(
                value=num_tokens(cell.spec) / time_s / 1e3,
                hint=f"{PLAN_LABELS[name]}, {cell.spec.name}, {milliseconds(time_s)}",
            )
            for cell, time_s in zip(cells, times_s, strict=True)
        )
        series.append(Series(name=PLAN_LABELS[name], color=PLAN_COLORS[name], bars=bars))
    return bar_chart(
        title, groups, series, value_name="1,000 tokens/s", show=digits, show_tick=lambda value: f"{value:g}"
    )
