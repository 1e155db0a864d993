"""Figure 11: LLAMA under a memory limit, with growing batches and with growing depth."""

from collections.abc import Callable, Sequence

from jaxquard.evaluate.cfp.cells.cell import Cell, CellSpec, PlanRun
from jaxquard.evaluate.cfp.cells.cell_step import num_tokens
from jaxquard.evaluate.cfp.cells.labels import OURS, PLAN_COLORS, PLAN_LABELS, cell_label, chosen_words
from jaxquard.evaluate.cfp.cells.pick import compared_run
from jaxquard.evaluate.common.numbers import digits, mebibytes, ratio
from jaxquard.report.charts.bar_chart import Bar, Series, bar_chart
from jaxquard.report.html_page import html_table

PLANS = (OURS, "zero 1", "volume")
TOO_LARGE = "✗"


def memory_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Returns LLAMA's cells with a limit that is the same for a whole series, or with any if no series has one."""
    limited = [cell for cell in cells if cell.spec.model == "llama" and cell.spec.has_limit]
    fixed = [cell for cell in limited if cell.spec.memory_limit_bytes is not None]
    return fixed or limited


def batch_series(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of the smallest depth, by batch."""
    smallest = min((cell.spec.num_layers for cell in cells), default=0)
    return sorted((cell for cell in cells if cell.spec.num_layers == smallest), key=lambda cell: cell.spec.batch_size)


def depth_series(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of the smallest batch, by depth."""
    smallest = min((cell.spec.batch_size for cell in cells), default=0)
    return sorted((cell for cell in cells if cell.spec.batch_size == smallest), key=lambda cell: cell.spec.num_layers)


def draw_figure_11(cells: Sequence[Cell]) -> list[str]:
    """Batches and depths."""
    batches, depths = batch_series(cells), depth_series(cells)
    charts = []
    if len(batches) > 1 or len(depths) == 1:
        charts.append(_draw("Growing batch", batches, lambda spec: f"batch {spec.batch_size}"))
    if len(depths) > 1:
        charts.append(_draw("Growing depth", depths, lambda spec: f"{spec.num_layers} layers"))
    return charts


def memory_table(cells: Sequence[Cell]) -> str:
    """Limit, memory and time of each plan in each cell."""
    rows = []
    for cell in cells:
        ours = cell.best
        row = [
            cell_label(cell.spec),
            "-" if cell.limit_bytes is None else mebibytes(cell.limit_bytes),
            chosen_words(cell),
        ]
        for name in (OURS, "data parallel", "zero 1", "zero 3", "volume"):
            run = compared_run(cell, name)
            if run is None or run.peak_bytes is None:
                row.append("-")
                continue
            time = "" if name == OURS else _times(run, ours)
            row.append(mebibytes(run.peak_bytes) + time + ("" if cell.fits(run) else f" {TOO_LARGE}"))
        rows.append(row)
    header = ["cell", "limit", "chosen", "chosen: memory", *(PLAN_LABELS[name] for name in ("data parallel", "zero 1"))]
    return html_table([*header, PLAN_LABELS["zero 3"], PLAN_LABELS["volume"]], rows, words=(0, 2))


def _times(run: PlanRun, ours: PlanRun | None) -> str:
    if ours is None or ours.whole_s is None or run.whole_s is None:
        return ""
    return f", {ratio(run.whole_s / ours.whole_s)}"


def _draw(title: str, cells: Sequence[Cell], name_of: Callable[[CellSpec], str]) -> str:
    series = []
    for name in PLANS:
        bars = []
        for cell in cells:
            run = compared_run(cell, name)
            fits = run is not None and run.whole_s is not None and cell.fits(run)
            value = num_tokens(cell.spec) / run.whole_s / 1e3 if run and run.whole_s and fits else 0.0
            bars.append(Bar(value=value, hint=f"{PLAN_LABELS[name]}, {cell.spec.name}"))
        series.append(Series(name=PLAN_LABELS[name], color=PLAN_COLORS[name], bars=tuple(bars)))
    return bar_chart(
        title,
        [name_of(cell.spec) for cell in cells],
        series,
        value_name=f"1,000 tokens/s; {TOO_LARGE}: over the limit",
        show=lambda value: digits(value) if value else TOO_LARGE,
        show_tick=lambda value: f"{value:g}",
    )
