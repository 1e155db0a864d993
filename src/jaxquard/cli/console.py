"""Printing of answers, and the files that commands write."""

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxquard.cli.exit_codes import UsageError, print_message
from jaxquard.errors import InfeasibleError

if TYPE_CHECKING:
    from rich.console import Console


def make_console() -> "Console":
    """Standard output; numbers are not coloured by themselves."""
    from rich.console import Console

    return Console(highlight=False)


def print_line(console: "Console", line: str, *, style: str = "") -> None:
    """Prints prose: wrapped at words on a terminal, one line anywhere else."""
    console.print(line, style=style, markup=False, soft_wrap=not console.is_terminal)


def print_text(text: str) -> None:
    """Prints a text as it is."""
    make_console().print(text, markup=False, soft_wrap=True)


def print_json(content: Any) -> None:
    """Prints an answer as JSON; a number that JSON does not have (NaN, infinity) becomes null."""
    print(json.dumps(_in_json(content), indent=2, allow_nan=False))


def _in_json(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _in_json(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_in_json(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def can_color(console: "Console") -> bool:
    """Says whether drawings may use colours: 16 are too few for phases and stages."""
    return console.color_system not in (None, "standard") and not console.no_color


def count(number: int, noun: str) -> str:
    """`1 stage`, `4 stages`, `8 microbatches`."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


def check_writable(*paths: Path | None) -> None:
    """Refuses files that cannot be written, before long work begins; what is there already stays as it is."""
    for path in paths:
        if path is not None:
            _check_writable(path)


def _check_writable(path: Path) -> None:
    target = os.path.realpath(path)
    is_new = not os.path.exists(target)
    if not is_new and not os.path.isfile(target) and not os.path.isdir(target):
        return  # A device or a pipe; to open it for a look may end whoever reads it.
    try:
        with open(target, "a"):
            pass
        if is_new:
            os.unlink(target)
    except (OSError, ValueError) as error:
        raise UsageError(_cannot_write(path, error)) from None


def write_file(path: Path, text: str) -> None:
    """Writes a file, and says so on stderr."""
    try:
        path.write_text(text)
    except (OSError, ValueError) as error:
        raise InfeasibleError(_cannot_write(path, error)) from None
    say_written(path)


def say_written(path: Path) -> None:
    """Says on stderr that a file was written."""
    print_message(f"wrote {path}")


def _cannot_write(path: Path, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"cannot write {path} ({reason}). Give a file in a folder that exists and can be written."
