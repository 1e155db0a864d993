"""A played schedule for the terminal: a row for each actor, time running to the right.

Cells are as wide as the terminal allows, a whole number of columns for the shortest task, so that equal tasks look
equal and each shows its microbatch. What is too wide for the terminal continues in bands below. Where that takes more
bands than anyone reads, time is scaled to fit, and the legend says how many tasks are too short to be drawn.
"""

from dataclasses import dataclass

from rich.text import Text

from jaxquard.ir.task import Task
from jaxquard.ir.timeline import Track
from jaxquard.report.timelines.grid_rows import (
    ColumnRange,
    GridCell,
    column_of,
    draw_axis,
    draw_heading,
    draw_row,
    explain_scale,
    parts_of,
    split_bands,
    write_legend,
)
from jaxquard.report.timelines.schedule_palette import phases_used, stages_by_actor
from jaxquard.schedules.play import Playback

_WIDEST_CELL = 4
_MOST_BANDS = 12
_PEAK_HEADING = " peak"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Labels before the rows, the scale that they leave, and the bands.

    Attributes:
        cell_width: columns of the shortest task; 0 if time is scaled to fit, and then no cell has digits.
    """

    labels: list[str]
    columns_per_s: float
    cell_width: int
    rows: list[list[GridCell]]
    bands: list[ColumnRange]


def schedule_grid(playback: Playback, *, width: int, color: bool = True) -> Text:
    """Draws a time axis, a row for each actor and a legend, `width` columns wide at most."""
    stages = stages_by_actor(playback.timeline)
    layout = _lay_out(playback, stages, width=width, color=color)
    lines: list[Text] = []
    for number, band in enumerate(layout.bands):
        if len(layout.bands) > 1:
            lines.append(draw_heading(band, playback.makespan_s, layout.columns_per_s, width=width))
        lines += _draw_band(playback, stages, layout, number, color=color)
    legend = write_legend(
        phases_used(playback.timeline),
        max(map(len, stages)),
        width=width,
        color=color,
        with_digits=layout.cell_width > 0,
        others=explain_scale(
            layout.rows,
            layout.bands,
            layout.columns_per_s,
            color=color,
            with_digits=layout.cell_width > 0,
            unit=" of time",
        ),
    )
    return Text("\n").join([*lines, legend])


def _draw_band(
    playback: Playback, stages: tuple[tuple[int, ...], ...], layout: _Layout, number: int, *, color: bool
) -> list[Text]:
    """Draws the axis and the rows of a band; the last has the peaks as well."""
    band, is_last = layout.bands[number], number == len(layout.bands) - 1
    indent = len(layout.labels[0])
    axis = " " * indent + draw_axis(playback.makespan_s, layout.columns_per_s, band)
    lines = [Text(axis.ljust(indent + band.end - band.start) + _PEAK_HEADING if is_last else axis, style="dim")]
    for actor, label in enumerate(layout.labels):
        parts = parts_of(layout.rows[actor], layout.bands, color=color, with_digits=layout.cell_width > 0)[number]
        line = Text(label).append_text(draw_row(parts, stages[actor], band, color=color))
        if is_last:
            line.append(f"{playback.peak_activations[actor]:>{len(_PEAK_HEADING)}}", style="dim")
        lines.append(line)
    return lines


def _lay_out(playback: Playback, stages: tuple[tuple[int, ...], ...], *, width: int, color: bool) -> _Layout:
    """Lays the drawing out; stages are named if no cell gets narrower and no band is added."""
    plain, with_stages = (_lay_out_with(playback, labels, width=width, color=color) for labels in label_actors(stages))
    is_as_good = plain.cell_width == with_stages.cell_width > 0 and len(plain.bands) == len(with_stages.bands)
    return with_stages if is_as_good else plain


def _lay_out_with(playback: Playback, labels: list[str], *, width: int, color: bool) -> _Layout:
    room = max(width - len(labels[0]) - len(_PEAK_HEADING), 10)
    columns_per_s, cell_width = _choose_scale(playback, room, color=color)
    rows = _place_cells(playback, columns_per_s)
    bands = split_bands(rows, column_of(playback.makespan_s, columns_per_s), room, color=color)
    return _Layout(labels=labels, columns_per_s=columns_per_s, cell_width=cell_width, rows=rows, bands=bands)


def label_actors(stages: tuple[tuple[int, ...], ...]) -> tuple[list[str], list[str]]:
    """Returns what stands before the rows: without and with the stages of each actor."""
    names = [f"actor {actor}" for actor in range(len(stages))]
    names = [f"{name:<{len(names[-1])}} " for name in names]
    homes = [",".join(map(str, each)) for each in stages]
    longest = max(map(len, homes))
    if max(map(len, stages)) == 1 or longest > 12:
        return names, names
    return names, [f"{name}{home:>{longest}} " for name, home in zip(names, homes, strict=True)]


def _choose_scale(playback: Playback, room: int, *, color: bool) -> tuple[float, int]:
    """Chooses columns per second, and the columns of the shortest task (0 if time is scaled to fit)."""
    spans = [span for span in playback.timeline.spans if span.track is Track.COMPUTE and span.time_s > 0]
    if not spans:
        return 1.0, 0
    shortest_s = min(span.time_s for span in spans)
    cells = [GridCell(task=Task.parse(span.name), start=0, end=0) for span in spans]
    readable = max(cell.label_width(color=color) for cell in cells)
    num_cells = playback.makespan_s / shortest_s
    for cell_width in range(max(_WIDEST_CELL, readable), readable - 1, -1):
        if num_cells * cell_width < room + 0.5:
            return cell_width / shortest_s, cell_width
    if num_cells * readable <= room * _MOST_BANDS:
        return readable / shortest_s, readable
    return room / playback.makespan_s, 0


def _place_cells(playback: Playback, columns_per_s: float) -> list[list[GridCell]]:
    rows: list[list[GridCell]] = [[] for _ in range(playback.timeline.num_actors)]
    for span in playback.timeline.spans:
        if span.track is Track.COMPUTE:
            start, end = (column_of(time_s, columns_per_s) for time_s in (span.start_s, span.end_s))
            rows[span.actor].append(GridCell(task=Task.parse(span.name), start=start, end=end))
    return rows
