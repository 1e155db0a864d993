"""Long commands that the user stops."""

import contextlib
from collections.abc import Iterator

import typer
from rich.console import Console


@contextlib.contextmanager
def ends_with(kept: str) -> Iterator[None]:
    """Ctrl-C ends the command with one sentence about what is kept, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True, highlight=False).print(f"interrupted. {kept}", markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
