"""Ctrl-C: the sentence that a long command ends with, and interrupts that Python would lose."""

import _thread
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from jaxquard.cli.exit_codes import INTERRUPTED, print_message

# How long a lost Ctrl-C waits before it is tried again: by then what swallowed it has mostly returned.
_AGAIN_AFTER_S = 0.02


@contextlib.contextmanager
def ends_with(kept: str) -> Iterator[None]:
    """Ends the command on Ctrl-C with one sentence about what is kept, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        import typer

        print_message(f"interrupted. {kept}")
        raise typer.Exit(INTERRUPTED) from None


def end_early_interrupts() -> None:
    """Ends the process at once on a Ctrl-C that comes before JAX is imported.

    Nothing is running then that has to end well, and modules in C turn an interrupt into an ImportError of many lines.
    """
    signal.signal(signal.SIGINT, _on_interrupt)


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    if hasattr(sys.modules.get("jax"), "jit"):
        signal.default_int_handler(number, frame)
    # Whatever imports may be under way in the middle of an import.
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(INTERRUPTED)


def keep_interrupts() -> None:
    """Repeats a Ctrl-C a moment later, if it comes where Python ignores exceptions.

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
