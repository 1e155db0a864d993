"""A measured timeline for the terminal, drawn as its schedule is (`schedule_grid`), to scale.

A task that is too short for a column is left out, so that what stands there is where it was; the legend says how many
are. Up to four bands are used where they show more microbatches.
"""

from rich.text import Text

from jaxquard.ir.timeline import Timeline, Track
from jaxquard.report.timelines.grid_rows import (
    ColumnRange,
    GridCell,
    column_of,
    count_labels,
    draw_axis,
    draw_heading,
    draw_row,
    explain_scale,
    parts_of,
    split_bands,
    write_legend,
)
from jaxquard.report.timelines.loop_tasks import split_fused, tasks_of
from jaxquard.report.timelines.schedule_grid import label_actors
from jaxquard.report.timelines.schedule_palette import OTHER_COLOR, phases_used, stages_by_actor

_MS = 1e-3
_MOST_BANDS = 4


def timeline_grid(timeline: Timeline, *, width: int, color: bool = True) -> Text:
    """Draws an axis in milliseconds, a row for each actor and a legend, `width` columns wide at most."""
    split = split_fused(timeline)
    stages = stages_by_actor(split)
    _, labels = label_actors(stages)
    columns_per_s, rows, bands = _lay_out(split, max(width - len(labels[0]), 10), color=color)
    lines = []
    for number, band in enumerate(bands):
        if len(bands) > 1:
            lines.append(draw_heading(band, timeline.time_s, columns_per_s, width=width, unit_s=_MS, unit=" ms"))
        axis = draw_axis(timeline.time_s, columns_per_s, band, unit_s=_MS)
        lines.append(Text(f"{'ms':<{len(labels[0])}}{axis}", style="dim"))
        for actor, label in enumerate(labels):
            parts = parts_of(rows[actor], bands, color=color)[number]
            lines.append(Text(label).append_text(draw_row(parts, stages[actor], band, color=color)))
    others = _explain_others(timeline, color=color)
    others += explain_scale(rows, bands, columns_per_s, color=color, unit_s=_MS, unit=" ms")
    legend = write_legend(
        phases_used(split), max(map(len, stages)), width=width, color=color, with_digits=True, others=others
    )
    return Text("\n").join([*lines, legend])


def _lay_out(timeline: Timeline, room: int, *, color: bool) -> tuple[float, list[list[GridCell]], list[ColumnRange]]:
    """Chooses the scale that shows most microbatches, in as few bands as do."""
    layouts = []
    for num_bands in range(1, _MOST_BANDS + 1):
        columns_per_s = num_bands * room / timeline.time_s if timeline.time_s else 1.0
        rows = _place_cells(timeline, columns_per_s)
        bands = split_bands(rows, num_bands * room, room, color=color)
        layouts.append((columns_per_s, rows, bands))
    return max(layouts, key=lambda layout: count_labels(layout[1], layout[2], color=color))


def _place_cells(timeline: Timeline, columns_per_s: float) -> list[list[GridCell]]:
    rows: list[list[GridCell]] = [[] for _ in range(timeline.num_actors)]
    for span in timeline.spans:
        if span.track is Track.COMPUTE:
            task = next(iter(tasks_of(span)), None)
            start, end = (column_of(time_s, columns_per_s) for time_s in (span.start_s, span.end_s))
            rows[span.actor].append(GridCell(task=task, start=start, end=end))
    return rows


def _explain_others(timeline: Timeline, *, color: bool) -> list[Text]:
    others = []
    compute = [span for span in timeline.spans if span.track is Track.COMPUTE]
    if any(not tasks_of(span) for span in compute):
        others.append(Text.assemble(("   ", f"on {OTHER_COLOR}") if color else "#", " outside the loop"))
    fused = next((span.name for span in compute if len(tasks_of(span)) > 1), None)
    if fused is not None:
        others.append(Text(f"{fused}, ... are one task, drawn as its parts"))
    return others
