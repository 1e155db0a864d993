"""A played schedule for the terminal: a row for each actor, time running to the right.

Colour tells the phase, shade the chunk, and the digits are the microbatch (its last digits
where a cell is narrow). Cells are as wide as the terminal allows, a whole number of columns for
the shortest task so that equal tasks look equal; if even one column each is too much, time is
scaled to fit and the digits are left out. Without colour a letter tells the phase instead, in
lower case for an actor's later stages.
"""

from dataclasses import dataclass

from rich.text import Text

from jaxquard.ir.task import Phase, Task
from jaxquard.ir.timeline import Span, Track
from jaxquard.report.schedule_palette import PHASE_NAMES, ink, phases_used, shade, stages_by_actor
from jaxquard.report.time_axis import tick_times
from jaxquard.schedules.play import Playback

_WIDEST_CELL = 4
_PEAK_HEADING = " peak"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """A task in the columns from `start` up to, not including, `end`."""

    task: Task
    start: int
    end: int


def schedule_grid(playback: Playback, *, width: int, color: bool = True) -> Text:
    """Draws a time axis, a row for each actor and a legend, `width` columns wide at most."""
    stages = stages_by_actor(playback.timeline)
    labels, columns_per_s, cell_width = _lay_out(playback, stages, width=width)
    num_columns = _column(playback.makespan_s, columns_per_s)
    axis = " " * len(labels[0]) + _draw_axis(playback.makespan_s, columns_per_s, num_columns)
    lines = [Text(axis.ljust(len(labels[0]) + num_columns) + _PEAK_HEADING, style="dim")]
    for actor, label in enumerate(labels):
        line = Text(label)
        cells = _place_cells(playback.timeline.spans, actor, columns_per_s)
        line.append_text(_draw_row(cells, stages[actor], num_columns, cell_width=cell_width, color=color))
        line.append(f"{playback.peak_activations[actor]:>{len(_PEAK_HEADING)}}", style="dim")
        lines.append(line)
    with_digits = color and cell_width > 0
    legend = _draw_legend(playback, stages, width=width, color=color, with_digits=with_digits)
    return Text("\n").join([*lines, legend])


def _lay_out(playback: Playback, stages: tuple[tuple[int, ...], ...], *, width: int) -> tuple[list[str], float, int]:
    """Labels of the rows and the scale that they leave; stages are named if no cell gets narrower."""
    plain, with_stages = _label_actors(stages)
    scale, scale_with_stages = (
        _choose_scale(playback, max(width - len(labels[0]) - len(_PEAK_HEADING), 10)) for labels in (plain, with_stages)
    )
    if 0 < scale[1] == scale_with_stages[1]:
        return with_stages, *scale_with_stages
    return plain, *scale


def _label_actors(stages: tuple[tuple[int, ...], ...]) -> tuple[list[str], list[str]]:
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


def _column(time_s: float, columns_per_s: float) -> int:
    return int(time_s * columns_per_s + 0.5)


def _place_cells(spans: tuple[Span, ...], actor: int, columns_per_s: float) -> list[_Cell]:
    cells = [
        _Cell(
            task=Task.parse(span.name),
            start=_column(span.start_s, columns_per_s),
            end=_column(span.end_s, columns_per_s),
        )
        for span in spans
        if span.actor == actor and span.track is Track.COMPUTE
    ]
    return [cell for cell in cells if cell.end > cell.start]


def _draw_row(cells: list[_Cell], stages: tuple[int, ...], num_columns: int, *, cell_width: int, color: bool) -> Text:
    row, position, idle = Text(), 0, "·" if color else "."
    for cell in cells:
        row.append(idle * (cell.start - position), style="dim")
        chunk = stages.index(cell.task.stage)
        if color:
            background = shade(cell.task.phase, chunk, len(stages))
            row.append(_write_digits(cell, cell_width), style=f"{ink(background)} on {background}")
        else:
            row.append(_write_letter(cell, chunk))
        position = cell.end
    row.append(idle * (num_columns - position), style="dim")
    return row


def _write_digits(cell: _Cell, cell_width: int) -> str:
    width = cell.end - cell.start
    return str(cell.task.microbatch)[-width:].center(width) if cell_width else " " * width


def _write_letter(cell: _Cell, chunk: int) -> str:
    width, letter = cell.end - cell.start, cell.task.phase.value
    digits = str(cell.task.microbatch)[-(width - 1) :] if width > 1 else ""
    return ((letter.lower() if chunk else letter) + digits).ljust(width, "-")


def _draw_axis(makespan_s: float, columns_per_s: float, num_columns: int) -> str:
    """Round times, each written from its own column on, as far as they fit."""
    axis = ""
    for tick_s in tick_times(makespan_s, width_per_s=columns_per_s, spacing=8):
        longer = axis.ljust(_column(tick_s, columns_per_s)) + f"{tick_s:g}"
        axis = longer if len(longer) <= num_columns else axis
    return axis


def _draw_legend(
    playback: Playback, stages: tuple[tuple[int, ...], ...], *, width: int, color: bool, with_digits: bool
) -> Text:
    entries = [_explain_phase(phase, color=color) for phase in phases_used(playback.timeline)]
    entries.append(Text.assemble(("·" if color else ".", "dim"), " waiting"))
    num_chunks = max(map(len, stages))
    if num_chunks > 1 and not color:
        entries.append(Text("lower case: an actor's later stages"))
    if num_chunks > 1 and color:
        shades = [("  ", f"on {shade(Phase.FORWARD, chunk, num_chunks)}") for chunk in range(num_chunks)]
        entries.append(Text.assemble(*shades, " stages of an actor"))
    if with_digits:
        entries.append(Text("digits: microbatch"))
    return _wrap(entries, width=width)


def _explain_phase(phase: Phase, *, color: bool) -> Text:
    background = shade(phase)
    style = f"{ink(background)} on {background}" if color else ""
    letter = f" {phase.value} " if color else phase.value
    return Text.assemble((letter, style), f" {PHASE_NAMES[phase]}")


def _wrap(entries: list[Text], *, width: int) -> Text:
    lines = [entries[0]]
    for entry in entries[1:]:
        if len(lines[-1]) + 3 + len(entry) > width:
            lines.append(entry)
        else:
            lines[-1] = Text.assemble(lines[-1], "   ", entry)
    return Text("\n").join(lines)
