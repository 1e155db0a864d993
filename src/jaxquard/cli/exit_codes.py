"""Exit codes of the command, and the one line on stderr that says why it ends.

0    done
1    it could not be done: nothing fits, out of memory, or a device, compiler or package is missing
2    usage: an option, an argument or a file that it names has to change
130  interrupted (Ctrl-C)

`jaxquard run` has two more: 75, the program saved its state after SIGTERM and can go on later, and 143, it did not.

Typer and JAX are imported where they are used: whoever handles an early Ctrl-C does not wait for them.
"""

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from jaxquard.errors import (
    CheckpointError,
    DeletedArrayError,
    InfeasibleError,
    JaxquardError,
    JaxquardWarning,
    MeshError,
    PricingError,
    RemoteArrayError,
    TaskFailed,
)

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

# Every other error of ours is about what the user gave. Commands check their own options before they make a mesh, so
# that a `MeshError` here speaks of devices, hosts or Ray.
_FAILURES = (
    InfeasibleError,
    MeshError,
    PricingError,
    TaskFailed,
    RemoteArrayError,
    DeletedArrayError,
    CheckpointError,
)


class UsageError(JaxquardError, ValueError):
    """An option or argument has a value that the command cannot take."""


def exit_code(error: JaxquardError) -> int:
    """Returns `FAILED` or `USAGE`."""
    return FAILED if isinstance(error, _FAILURES) else USAGE


def run_command(command: Callable[[], Any], *, show_traceback: bool) -> int:
    """Runs a command; whatever it raises becomes one line on stderr. Returns the exit code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", JaxquardWarning)
            warnings.showwarning = _show_warning
            code = command()
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except KeyboardInterrupt:
        print_message("interrupted")
        return INTERRUPTED
    except Exception as error:
        if is_broken_pipe(error):
            return _end_quietly()
        if show_traceback:
            traceback.print_exc()
        return _explain(error)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Shows a warning of ours as one line; what others warn of is for whoever writes Python."""
    if issubclass(category, JaxquardWarning):
        print_message(f"warning: {message}", style="yellow")


def _explain(error: Exception) -> int:
    """Prints the line of an error and returns its exit code."""
    if _is_of_click(error):
        _print_usage(error)
        return USAGE
    if isinstance(error, JaxquardError):
        print_error(str(error))
        return exit_code(error)
    if isinstance(error, OSError) and error.filename is None and error.errno == errno.ENOSPC:
        print_error(f"cannot write the answer ({error.strerror}).")
        return FAILED
    print_error(_unexpected(error))
    return FAILED


def _is_of_click(error: Exception) -> bool:
    """Says whether an error is one of click's, wherever this version of typer keeps them."""
    import typer

    return isinstance(error, typer.BadParameter.__mro__[2])


def _print_usage(error: Any) -> None:
    context = getattr(error, "ctx", None)
    message = error.format_message()
    if hasattr(error, "possibilities"):  # Of an option that is not there; versions of click word it differently.
        message = f"No such option: {error.option_name}.{did_you_mean(error.possibilities or ())}"
    message = message if message.endswith(("?", ".")) else f"{message}."
    print_error(f"{message} See {'jaxquard' if context is None else context.command_path} --help.")


def did_you_mean(names: Iterable[str]) -> str:
    """Returns ` Did you mean --json?`, or nothing if no name is near."""
    near = " or ".join(names)
    return f" Did you mean {near}?" if near else ""


def _unexpected(error: Exception) -> str:
    name, message = type(error).__name__, " ".join(str(error).split("\n")[0].split())
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in message:
        return f"out of memory ({message or name}). Give a smaller problem, or more devices."
    from jaxquard.ir.source import raising_line

    place = raising_line(error)
    where = f" ({place})" if place else ""
    return f"{name}: {message.rstrip('.') or 'no message'}{where}. Add --traceback to see where it comes from."


def is_broken_pipe(error: BaseException) -> bool:
    """Says whether the reader of stdout has gone, as `head` does when it has seen enough."""
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def _end_quietly() -> int:
    """Sends what is still buffered nowhere, so that Python does not complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def print_error(message: str) -> None:
    """Prints `error: ...` as one line on stderr."""
    print_message(f"error: {' '.join(message.split())}", style="red")


def print_message(message: str, *, style: str = "") -> None:
    """Prints one line on stderr, where everything goes that is not the answer."""
    import typer

    typer.secho(message, fg=style or None, err=True, color=False if os.environ.get("NO_COLOR") else None)
