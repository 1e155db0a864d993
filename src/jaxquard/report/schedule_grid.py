"""A played schedule for the terminal: a row for each actor, time running to the right.

Cells are as wide as the terminal allows, a whole number of columns for the shortest task so that
equal tasks look equal; if even one column each is too much, time is scaled to fit and the digits
are left out. What the cells look like is in `grid_rows`.
"""

from rich.text import Text

from jaxquard.ir.task import Task
from jaxquard.ir.timeline import Span, Track
from jaxquard.report.grid_rows import Cell, column_of, draw_axis, draw_legend, draw_row
from jaxquard.report.schedule_palette import phases_used, stages_by_actor
from jaxquard.schedules.play import Playback

_WIDEST_CELL = 4
_PEAK_HEADING = " peak"


def schedule_grid(playback: Playback, *, width: int, color: bool = True) -> Text:
    """Draws a time axis, a row for each actor and a legend, `width` columns wide at most."""
    stages = stages_by_actor(playback.timeline)
    labels, columns_per_s, cell_width = _lay_out(playback, stages, width=width)
    num_columns = column_of(playback.makespan_s, columns_per_s)
    axis = " " * len(labels[0]) + draw_axis(playback.makespan_s, columns_per_s, num_columns)
    lines = [Text(axis.ljust(len(labels[0]) + num_columns) + _PEAK_HEADING, style="dim")]
    with_digits = cell_width > 0
    for actor, label in enumerate(labels):
        line = Text(label)
        cells = _place_cells(playback.timeline.spans, actor, columns_per_s)
        line.append_text(draw_row(cells, stages[actor], num_columns, with_digits=with_digits, color=color))
        line.append(f"{playback.peak_activations[actor]:>{len(_PEAK_HEADING)}}", style="dim")
        lines.append(line)
    phases, num_chunks = phases_used(playback.timeline), max(map(len, stages))
    legend = draw_legend(phases, num_chunks, width=width, color=color, with_digits=with_digits)
    return Text("\n").join([*lines, legend])


def _lay_out(playback: Playback, stages: tuple[tuple[int, ...], ...], *, width: int) -> tuple[list[str], float, int]:
    """Labels of the rows and the scale that they leave; stages are named if no cell gets narrower."""
    plain, with_stages = label_actors(stages)
    scale, scale_with_stages = (
        _choose_scale(playback, max(width - len(labels[0]) - len(_PEAK_HEADING), 10)) for labels in (plain, with_stages)
    )
    if 0 < scale[1] == scale_with_stages[1]:
        return with_stages, *scale_with_stages
    return plain, *scale


def label_actors(stages: tuple[tuple[int, ...], ...]) -> tuple[list[str], list[str]]:
    """What stands before the rows: without and with the stages of each actor."""
    names = [f"actor {actor}" for actor in range(len(stages))]
    names = [f"{name:<{len(names[-1])}} " for name in names]
    homes = [",".join(map(str, each)) for each in stages]
    longest = max(map(len, homes))
    if max(map(len, stages)) == 1 or longest > 12:
        return names, names
    return names, [f"{name}{home:>{longest}} " for name, home in zip(names, homes, strict=True)]


def _choose_scale(playback: Playback, num_columns: int) -> tuple[float, int]:
    """Columns per second, and how many columns the shortest task has (0 if less than one)."""
    times_s = [span.time_s for span in playback.timeline.spans if span.track is Track.COMPUTE and span.time_s > 0]
    if not times_s:
        return 1.0, 0
    shortest_s = min(times_s)
    for cell_width in range(_WIDEST_CELL, 0, -1):
        if playback.makespan_s / shortest_s * cell_width < num_columns + 0.5:
            return cell_width / shortest_s, cell_width
    return num_columns / playback.makespan_s, 0


def _place_cells(spans: tuple[Span, ...], actor: int, columns_per_s: float) -> list[Cell]:
    cells = [
        Cell(
            task=Task.parse(span.name),
            start=column_of(span.start_s, columns_per_s),
            end=column_of(span.end_s, columns_per_s),
        )
        for span in spans
        if span.actor == actor and span.track is Track.COMPUTE
    ]
    return [cell for cell in cells if cell.end > cell.start]
