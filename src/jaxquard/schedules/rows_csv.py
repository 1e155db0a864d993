"""Rows as CSV, the text form of a schedule, as PyTorch's pipeline schedules save and load it.

One line for each actor (PyTorch: rank), one cell for each task, `0F3` in each cell:

    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1

PyTorch pads with blank cells where an actor waits, and writes a forward and a backward that
overlap as one cell, `(0F8;7B0)OVERLAP_F_B`. Both are read: blanks are skipped, since waiting
follows from the order, and the pair becomes two tasks. Cells of PyTorch's other form, which
holds communication too, are refused: jaxquard places transfers itself.
"""

import csv
import re
from pathlib import Path

from jaxquard.errors import ScheduleError
from jaxquard.ir.task import Task
from jaxquard.schedules.schedule import Rows

_OVERLAP = re.compile(r"\((.*)\)OVERLAP_F_B")
_COMMUNICATION = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*")


def read_csv(path_or_text: str | Path) -> Rows:
    r"""Reads rows of tasks; lines without any cell are skipped.

    Args:
        path_or_text: a `Path` or a text that ends in `.csv` names a file; any other text is the
            rows themselves.

    Raises:
        ScheduleError: if there is no such file, or a cell is not a task; it says which cell.

    Example:
        >>> rows = jq.schedules.read_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1")
        >>> str(rows[1][0])
        '1F0'
    """
    if isinstance(path_or_text, Path) or path_or_text.endswith(".csv"):
        text = _read_file(Path(path_or_text))
    else:
        text = path_or_text
    return tuple(
        parse_row(line, line_number=number) for number, line in enumerate(text.splitlines(), start=1) if line.strip()
    )


def parse_row(line: str, *, line_number: int) -> tuple[Task, ...]:
    """Reads the tasks of one actor; `line_number` is for the error if a cell is not a task."""
    cells = next(csv.reader([line]), [])
    return tuple(
        task
        for column, cell in enumerate(cells, start=1)
        for task in _parse_cell(cell.strip(), where=f"line {line_number}, cell {column}")
    )


def write_csv(rows: Rows) -> str:
    r"""Writes what `read_csv` reads: a line for each actor, with blank cells only if it has no task.

    Example:
        >>> jq.schedules.write_csv(jq.schedules.GPipe(2).rows(num_microbatches=2))
        '0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n'
    """
    return "".join((",".join(map(str, row)) or ",") + "\n" for row in rows)


def _read_file(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ScheduleError(
            f"cannot read the schedule {path} ({reason}). Give the path of a CSV with a line of tasks, "
            "like 0F0,0F1,0B0, for each actor."
        ) from None


def _parse_cell(cell: str, *, where: str) -> tuple[Task, ...]:
    if not cell:
        return ()
    overlap = _OVERLAP.fullmatch(cell)
    if overlap is not None:
        return tuple(task for part in overlap[1].split(";") for task in _parse_cell(part, where=where))
    if _COMMUNICATION.fullmatch(cell):
        raise ScheduleError(
            f"{where}: {cell!r} is communication, which jaxquard places itself. Save the schedule in "
            "PyTorch's compute-only form (format='compute_only')."
        )
    try:
        return (Task.parse(cell),)
    except ScheduleError as error:
        raise ScheduleError(f"{where}: {error}") from None
