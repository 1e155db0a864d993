"""Numbers and tables of plans as text: SI units, columns that align, prose that wraps."""

import math
import textwrap
from collections.abc import Sequence

WIDTH = 100

# Stands for a space at which no line ends.
_TOGETHER = "\N{NO-BREAK SPACE}"
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def time_text(time_s: float) -> str:
    """Returns `4.83 s`, `12.3 ms` or `410 us`; `-` for a time that there is not."""
    if not math.isfinite(time_s):
        return "-"
    size, unit = next((entry for entry in _TIME_UNITS if abs(time_s) >= entry[0]), _TIME_UNITS[-1])
    return f"{_three_digits(time_s / size)} {unit}" if time_s else "0 s"


def bytes_text(num_bytes: int) -> str:
    """Returns `68.1 GB`, `512 MB` or `12 B`."""
    size, unit = next((entry for entry in _BYTE_UNITS if abs(num_bytes) >= entry[0]), (1.0, "B"))
    return f"{_three_digits(num_bytes / size)} {unit}" if unit != "B" else f"{num_bytes} B"


def signed_text(text: str, number: float) -> str:
    """Returns a text with a plus before it if the number is not below 0."""
    return text if number < 0 else f"+{text}"


def percent_text(part: float) -> str:
    """Returns `41.2 %`; shares below a tenth keep their digit, small ones are `0.0 %`."""
    return f"{100 * part:.1f} %"


def ratio_text(number: float, of: float) -> str:
    """Returns `1.23`; `-` where there is no number, or nothing to divide by."""
    return f"{number / of:.2f}" if math.isfinite(number) and of > 0 else "-"


def _three_digits(number: float) -> str:
    if abs(number) >= 999.5:
        return f"{number:,.0f}"
    return f"{number:.{max(0, 2 - int(math.log10(max(abs(number), 1.0))))}f}"


def align_table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Returns rows with their columns aligned, two spaces between.

    Args:
        right: the columns that are aligned at their right.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(_cells(row, widths, right)).rstrip() for row in rows]


def _cells(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> list[str]:
    pairs = enumerate(zip(row, widths, strict=True))
    return [cell.rjust(width) if column in right else cell.ljust(width) for column, (cell, width) in pairs]


def beside(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Returns two blocks of lines side by side."""
    width = max(map(len, left), default=0)
    height = max(len(left), len(right))
    padded = [[*lines, *[""] * (height - len(lines))] for lines in (left, right)]
    return [f"{first:{width}}    {second}".rstrip() for first, second in zip(*padded, strict=True)]


def wrap_prose(text: str, *, indent: str = "  ") -> list[str]:
    """Returns a sentence in lines of at most `WIDTH` columns, the later ones indented."""
    together = text.replace(" %", f"{_TOGETHER}%")
    lines = textwrap.wrap(together, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(_TOGETHER, " ") for line in lines]


def shorten_cell(text: str, width: int) -> str:
    """Returns a text of at most so many columns; of a longer one the beginning."""
    return text if len(text) <= width else text[: width - 1].rstrip(" ,;") + "…"
