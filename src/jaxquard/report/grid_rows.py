"""What drawings for the terminal share: cells in a row, a time axis, a legend.

Colour tells the phase, shade the chunk, and the digits are the microbatch (its last digits where a cell is
narrow). Without colour a letter tells the phase instead, in lower case for an actor's later stages.
"""

from dataclasses import dataclass

from rich.text import Text

from jaxquard.ir.task import Phase, Task
from jaxquard.report.schedule_palette import OTHER_COLOR, PHASE_NAMES, ink, shade
from jaxquard.report.time_axis import tick_times


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A task, or something outside the loop, in the columns from `start` up to, not including, `end`."""

    task: Task | None
    start: int
    end: int

    @property
    def width(self) -> int:
        return self.end - self.start


def column_of(time_s: float, columns_per_s: float) -> int:
    """The column at which a time stands."""
    return int(time_s * columns_per_s + 0.5)


def draw_row(cells: list[Cell], stages: tuple[int, ...], num_columns: int, *, with_digits: bool, color: bool) -> Text:
    """One actor's cells in order, with dots between them."""
    row, position, idle = Text(), 0, "·" if color else "."
    for cell in cells:
        row.append(idle * (cell.start - position), style="dim")
        row.append_text(_draw_cell(cell, stages, with_digits=with_digits, color=color))
        position = cell.end
    row.append(idle * (num_columns - position), style="dim")
    return row


def _draw_cell(cell: Cell, stages: tuple[int, ...], *, with_digits: bool, color: bool) -> Text:
    if cell.task is None:
        return Text(" " * cell.width, style=f"on {OTHER_COLOR}") if color else Text("#" * cell.width)
    chunk, digits = stages.index(cell.task.stage), str(cell.task.microbatch)
    if color:
        background = shade(cell.task.phase, chunk, len(stages))
        label = digits[-cell.width :].center(cell.width) if with_digits else " " * cell.width
        return Text(label, style=f"{ink(background)} on {background}")
    letter = cell.task.phase.value.lower() if chunk else cell.task.phase.value
    return Text((letter + (digits[-(cell.width - 1) :] if cell.width > 1 else "")).ljust(cell.width, "-"))


def draw_axis(time_s: float, columns_per_s: float, num_columns: int, *, unit_s: float = 1.0) -> str:
    """Round times, each written from its own column on, as far as they fit."""
    axis = ""
    for tick in tick_times(time_s / unit_s, width_per_s=columns_per_s * unit_s, spacing=8):
        longer = axis.ljust(column_of(tick * unit_s, columns_per_s)) + f"{tick:g}"
        axis = longer if len(longer) <= num_columns else axis
    return axis


def draw_legend(
    phases: tuple[Phase, ...],
    num_chunks: int,
    *,
    width: int,
    color: bool,
    with_digits: bool,
    others: tuple[Text, ...] = (),
) -> Text:
    """What colours, letters and digits mean, in as many lines as `width` asks for."""
    entries = [_explain_phase(phase, color=color) for phase in phases]
    entries.append(Text.assemble(("·" if color else ".", "dim"), " waiting"))
    if num_chunks > 1 and not color:
        entries.append(Text("lower case: an actor's later stages"))
    if num_chunks > 1 and color:
        shades = [("  ", f"on {shade(Phase.FORWARD, chunk, num_chunks)}") for chunk in range(num_chunks)]
        entries.append(Text.assemble(*shades, " stages of an actor"))
    if with_digits and color:
        entries.append(Text("digits: microbatch"))
    return _wrap([*entries, *others], width=width)


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
