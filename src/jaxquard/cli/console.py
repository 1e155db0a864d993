"""What the subcommands share in printing."""

import os
from pathlib import Path

from rich.console import Console

from jaxquard.errors import JaxquardError


def make_console() -> Console:
    """Standard output; numbers are not coloured by themselves."""
    return Console(highlight=False)


def print_line(console: Console, line: str, *, style: str = "") -> None:
    """Prints prose: wrapped at words on a terminal, one line anywhere else."""
    console.print(line, style=style, markup=False, soft_wrap=not console.is_terminal)


def can_color(console: Console) -> bool:
    """Whether drawings may use colours: 16 are too few to tell phases and stages apart."""
    return console.color_system not in (None, "standard") and not console.no_color


def count(number: int, noun: str) -> str:
    """`1 stage`, `4 stages`, `8 microbatches`."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


def check_writable(path: Path) -> None:
    """Refuses a file that cannot be written, before long work begins; what is there already stays as it is."""
    target = os.path.realpath(path)
    is_new = not os.path.exists(target)
    if not is_new and not os.path.isfile(target) and not os.path.isdir(target):
        return  # A device or a pipe; to open it for a look may end whoever reads it.
    try:
        with open(target, "a"):
            pass
        if is_new:
            os.unlink(target)
    except OSError as error:
        raise _cannot_write(path, error) from None


def write_file(path: Path, text: str) -> None:
    """Writes a file, and says so on stderr."""
    try:
        path.write_text(text)
    except OSError as error:
        raise _cannot_write(path, error) from None
    Console(stderr=True, highlight=False).print(f"wrote {path}", markup=False, soft_wrap=True)


def _cannot_write(path: Path, error: OSError) -> JaxquardError:
    return JaxquardError(
        f"cannot write {path} ({error.strerror}). Give a file in a folder that exists and can be written."
    )
