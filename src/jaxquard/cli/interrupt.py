"""Long commands that the user stops."""

import _thread
import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import typer
from rich.console import Console

# How long a lost Ctrl-C waits before it is tried again: by then what swallowed it has mostly returned.
_AGAIN_AFTER_S = 0.02


@contextlib.contextmanager
def ends_with(kept: str) -> Iterator[None]:
    """Ctrl-C ends the command with one sentence about what is kept, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True, highlight=False).print(f"interrupted. {kept}", markup=False, soft_wrap=True)
        raise typer.Exit(130) from None


def keep_interrupts() -> None:
    """From now on, a Ctrl-C that comes where Python ignores exceptions comes again a moment later.

    JAX has a function called after every garbage collection, and modules that are being imported collect
    often. Whatever is raised there, or in a `__del__`, is printed and forgotten, and the command would go on.
    """
    report = sys.unraisablehook

    def catch(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # Not `threading.Thread`, which takes a lock that the interrupted code may hold.
            _thread.start_new_thread(_interrupt_again, ())
        else:
            report(unraisable)

    sys.unraisablehook = catch


def _interrupt_again() -> None:
    time.sleep(_AGAIN_AFTER_S)
    _thread.interrupt_main()
