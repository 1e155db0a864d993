"""Options that several commands share, and the reading of their values."""

import math
import re
from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from jaxquard.cli.exit_codes import UsageError

JsonOption = Annotated[bool, typer.Option("--json", help="Print the answer as JSON on stdout, and nothing else there.")]
CpuOption = Annotated[bool, typer.Option("--cpu", help="Use virtual CPU devices even if there is a GPU.")]
MemoryLimitOption = Annotated[
    str | None,
    typer.Option("--memory-limit", metavar="SIZE", help="Memory limit of each device, such as 2GiB or 500MB."),
]

# JAX starts so many virtual CPU devices within seconds; more are a slip of the finger.
MOST_DEVICES = 4096
_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def match_name(text: str, names: Iterable[str]) -> str:
    """Returns the name that is meant: case does not count, and `_` and `-` are the same. Unknown text comes back."""
    return next((name for name in names if _plain(name) == _plain(text)), text)


def complete(*names: str) -> Callable[[str], list[str]]:
    """Returns what typer asks for completions: the names that begin with what is there."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def choose_name(text: str, names: Iterable[str], *, kind: str, hint: str = "") -> str:
    """Returns the name that is meant.

    Raises:
        UsageError: there is none; it lists those that there are.
    """
    known = tuple(names)
    found = match_name(text, known)
    if found not in known:
        raise UsageError(f"no {kind} is called {text!r}. Use one of: {', '.join(known)}{hint}.")
    return found


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def parse_numbers(
    text: str, *, option: str, example: str, between: str = "x", count: int | None = None
) -> tuple[int, ...]:
    """Reads whole numbers above 0, such as `8x4` or `1,2,4`.

    Args:
        count: how many there must be; any number if None.
    """
    words = [word.strip() for word in text.lower().split(between)]
    is_right = all(map(is_count, words)) and count in (None, len(words))
    if not is_right:
        what = "whole numbers" if count is None else f"{count} whole numbers"
        raise UsageError(f"{option} should be {what} above 0, such as {example}, but is {text!r}.")
    return tuple(map(int, words))


def is_count(word: str) -> bool:
    """Says whether a word is a whole number above 0, of a size that something can have."""
    return len(word) <= 18 and word.isdecimal() and int(word) > 0


def parse_size(text: str | None, *, option: str = "--memory-limit") -> int | None:
    """Reads `2GiB`, `500 MB` and `1000000` as bytes."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    unit = None if found is None else _UNITS.get(found[2])
    size_bytes = 0.0 if found is None or unit is None else float(found[1]) * unit
    if not 1 <= size_bytes < math.inf:
        raise UsageError(f"{option} should be a size above 0, such as 2GiB, 500MB or 1000000 (bytes), but is {text!r}.")
    return int(size_bytes)
