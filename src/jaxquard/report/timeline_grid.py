"""A measured timeline for the terminal, drawn as its schedule is (`schedule_grid`), to scale.

A task that is too short for a column is left out, so that what stands there is where it was.
"""

from rich.text import Text

from jaxquard.ir.timeline import Timeline, Track
from jaxquard.report.grid_rows import Cell, column_of, draw_axis, draw_legend, draw_row
from jaxquard.report.loop_tasks import split_fused, tasks_of
from jaxquard.report.schedule_grid import label_actors
from jaxquard.report.schedule_palette import OTHER_COLOR, phases_used, stages_by_actor

_MS = 1e-3


def timeline_grid(timeline: Timeline, *, width: int, color: bool = True) -> Text:
    """Draws an axis in milliseconds, a row for each actor and a legend, `width` columns wide at most."""
    split = split_fused(timeline)
    stages = stages_by_actor(split)
    _, labels = label_actors(stages)
    num_columns = max(width - len(labels[0]), 10)
    columns_per_s = num_columns / timeline.time_s if timeline.time_s else 1.0
    axis = draw_axis(timeline.time_s, columns_per_s, num_columns, unit_s=_MS)
    lines = [Text(f"{'ms':<{len(labels[0])}}{axis}", style="dim")]
    for actor, label in enumerate(labels):
        cells = _place_cells(split, actor, columns_per_s)
        lines.append(
            Text(label).append_text(draw_row(cells, stages[actor], num_columns, with_digits=True, color=color))
        )
    return Text("\n").join([*lines, _draw_legend(timeline, split, stages, width=width, color=color)])


def _place_cells(timeline: Timeline, actor: int, columns_per_s: float) -> list[Cell]:
    cells = [
        Cell(
            task=next(iter(tasks_of(span)), None),
            start=column_of(span.start_s, columns_per_s),
            end=column_of(span.end_s, columns_per_s),
        )
        for span in timeline.spans
        if span.actor == actor and span.track is Track.COMPUTE
    ]
    return [cell for cell in cells if cell.end > cell.start]


def _draw_legend(
    timeline: Timeline, split: Timeline, stages: tuple[tuple[int, ...], ...], *, width: int, color: bool
) -> Text:
    others = []
    compute = [span for span in timeline.spans if span.track is Track.COMPUTE]
    if any(not tasks_of(span) for span in compute):
        others.append(Text.assemble(("   ", f"on {OTHER_COLOR}") if color else "#", " outside the loop"))
    fused = next((span.name for span in compute if len(tasks_of(span)) > 1), None)
    if fused is not None:
        others.append(Text(f"{fused}, ... are one task, drawn as its parts"))
    return draw_legend(
        phases_used(split),
        max(map(len, stages)),
        width=width,
        color=color,
        with_digits=True,
        others=tuple(others),
    )
