"""Parts that drawings for the terminal share: cells in a row, a time axis, a legend.

Colour shows the phase, shade the chunk, and the digits are the microbatch. Without colour a letter shows the phase
instead, in lower case for an actor's later stages. A microbatch is written in full or not at all. A drawing that is too
wide continues in bands below (`split_bands`); a task that stands in two of them has its label in the longer part.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from jaxquard.ir.task import Phase, Task
from jaxquard.report.charts.chart_parts import tick_times
from jaxquard.report.timelines.schedule_palette import OTHER_COLOR, PHASE_NAMES, ink, shade


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """A task, or something outside the loop, in the columns from `start` up to, not including, `end`."""

    task: Task | None
    start: int
    end: int

    def label_width(self, *, color: bool) -> int:
        """The columns that the label needs; a blank keeps numbers of two digits apart where no letter does."""
        digits = len(str(self.task.microbatch)) if self.task is not None else 0
        return digits if color and digits < 2 else digits + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRange:
    """The columns of a drawing that stand side by side."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The columns of a cell that stand in one band."""

    cell: GridCell
    start: int
    end: int
    has_label: bool

    @property
    def width(self) -> int:
        return self.end - self.start


def column_of(time_s: float, columns_per_s: float) -> int:
    """Returns the column at which a time stands."""
    return int(time_s * columns_per_s + 0.5)


def split_bands(rows: Sequence[Sequence[GridCell]], num_columns: int, room: int, *, color: bool) -> list[ColumnRange]:
    """Splits a drawing into as few bands of at most `room` columns as it takes, about equally wide.

    A band ends, within a few columns, where the fewest labels and tasks suffer.
    """
    bands, start = [], 0
    while num_columns - start > room:
        end = _choose_end(rows, start, num_columns, room, color=color)
        bands.append(ColumnRange(start=start, end=end))
        start = end
    return [*bands, ColumnRange(start=start, end=num_columns)]


def _choose_end(rows: Sequence[Sequence[GridCell]], start: int, num_columns: int, room: int, *, color: bool) -> int:
    left = num_columns - start
    num_bands = -(-left // room)
    ideal, slack = -(-left // num_bands), max(room // 8, 1)
    # What is left must fit into the other bands.
    first, last = max(ideal - slack, left - (num_bands - 1) * room, 1), min(ideal + slack, room)
    columns = range(start + first, start + last + 1)
    return min(columns, key=lambda column: (*_harm(rows, column, color=color), abs(column - start - ideal)))


def _harm(rows: Sequence[Sequence[GridCell]], column: int, *, color: bool) -> tuple[int, int]:
    """Counts the cells that a column splits so that neither part has room for the label, and all that it splits."""
    crossing = [cell for row in rows for cell in row if cell.start < column < cell.end]
    spoilt = (max(column - cell.start, cell.end - column) < cell.label_width(color=color) for cell in crossing)
    return sum(spoilt), len(crossing)


def parts_of(
    cells: Sequence[GridCell], bands: Sequence[ColumnRange], *, color: bool, with_digits: bool = True
) -> list[list[Part]]:
    """Returns for each band the parts of the cells that stand in it; the longest part of a cell has the label."""
    found: list[list[Part]] = [[] for _ in bands]
    for cell in cells:
        pieces = [
            (number, max(cell.start, band.start), min(cell.end, band.end))
            for number, band in enumerate(bands)
            if cell.start < band.end and cell.end > band.start and cell.end > cell.start
        ]
        longest = max(pieces, key=lambda piece: piece[2] - piece[1], default=None)
        for piece in pieces:
            number, start, end = piece
            fits = with_digits and end - start >= cell.label_width(color=color)
            found[number].append(Part(cell=cell, start=start, end=end, has_label=piece is longest and fits))
    return found


def count_labels(
    rows: Sequence[Sequence[GridCell]], bands: Sequence[ColumnRange], *, color: bool, with_digits: bool = True
) -> int:
    """Counts the tasks that are drawn with their microbatch."""
    bands_of_rows = (parts_of(row, bands, color=color, with_digits=with_digits) for row in rows)
    parts = itertools.chain.from_iterable(itertools.chain.from_iterable(bands_of_rows))
    return sum(part.has_label and part.cell.task is not None for part in parts)


def draw_row(parts: Sequence[Part], stages: tuple[int, ...], band: ColumnRange, *, color: bool) -> Text:
    """Draws one actor's cells in a band, in order, with dots between them."""
    row, position, idle = Text(), band.start, "·" if color else "."
    for part in parts:
        row.append(idle * (part.start - position), style="dim")
        row.append_text(_draw_part(part, stages, color=color))
        position = part.end
    row.append(idle * (band.end - position), style="dim")
    return row


def _draw_part(part: Part, stages: tuple[int, ...], *, color: bool) -> Text:
    task, width = part.cell.task, part.width
    if task is None:
        return Text(" " * width, style=f"on {OTHER_COLOR}") if color else Text("#" * width)
    chunk, digits = stages.index(task.stage), str(task.microbatch) if part.has_label else ""
    if color:
        background = shade(task.phase, chunk, len(stages))
        return Text(digits.center(width), style=f"{ink(background)} on {background}")
    letter = task.phase.value.lower() if chunk else task.phase.value
    is_continued = part.start > part.cell.start and not part.has_label
    return Text(("" if is_continued else letter + digits).ljust(width, "-"))


def draw_axis(time_s: float, columns_per_s: float, band: ColumnRange, *, unit_s: float = 1.0) -> str:
    """Draws round times, each written from its own column on, as far as they fit into a band."""
    axis = ""
    for tick in tick_times(time_s / unit_s, width_per_s=columns_per_s * unit_s, spacing=8):
        column = column_of(tick * unit_s, columns_per_s) - band.start
        longer = axis.ljust(column) + f"{tick:g}"
        if column >= 0 and len(longer) <= band.end - band.start:
            axis = longer
    return axis


def draw_heading(
    band: ColumnRange, time_s: float, columns_per_s: float, *, width: int, unit_s: float = 1.0, unit: str = ""
) -> Text:
    """Draws the line above a band: `time 0 to 26 of 99 (continued below)`."""
    is_last = band.end >= column_of(time_s, columns_per_s)
    start, end = (column / columns_per_s / unit_s for column in (band.start, band.end))
    total = time_s / unit_s
    heading = f"time {_number(start)} to {_number(total if is_last else end)} of {_number(total)}{unit}"
    longer = f"{heading} (continued below)"
    return Text(heading if is_last or len(longer) > width else longer, style="dim")


def _number(value: float) -> str:
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def explain_scale(
    rows: Sequence[Sequence[GridCell]],
    bands: Sequence[ColumnRange],
    columns_per_s: float,
    *,
    color: bool,
    with_digits: bool = True,
    unit_s: float = 1.0,
    unit: str = "",
) -> list[Text]:
    """Says how many tasks are too short for the scale; nothing if every task is drawn with its microbatch."""
    tasks = [cell for row in rows for cell in row if cell.task is not None]
    num_hidden = sum(cell.end <= cell.start for cell in tasks)
    num_bare = len(tasks) - num_hidden - count_labels(rows, bands, color=color, with_digits=with_digits)
    found = []
    if num_hidden or num_bare:
        found.append(Text(f"a column is {1 / columns_per_s / unit_s:.3g}{unit}"))
    if num_hidden:
        found.append(Text(f"{num_hidden} of {len(tasks)} tasks: too short to draw"))
    if num_bare:
        found.append(Text(f"{num_bare} of {len(tasks)} tasks: no room for digits"))
    return found


def write_legend(
    phases: tuple[Phase, ...],
    num_chunks: int,
    *,
    width: int,
    color: bool,
    with_digits: bool,
    others: Sequence[Text] = (),
) -> Text:
    """Explains colours, letters and digits, in as many lines as `width` asks for."""
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
