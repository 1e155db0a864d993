"""Runs work in a thread that the interpreter waits for before it exits.

At exit Python first closes all thread pools to new work, then waits for threads, then calls `atexit`
functions. Orbax uses such pools, so a write that is under way would fail in between: we have to wait before.
`threading._register_atexit` is how the pools themselves do it; without it, writes have to be waited for by hand.
"""

import concurrent.futures.thread  # noqa: F401  Its hook must be there before ours, as the last one is called first.
import functools
import threading
import weakref
from collections.abc import Callable

_running: "weakref.WeakSet[BackgroundCall]" = weakref.WeakSet()


class BackgroundCall:
    """A function that runs in a separate thread."""

    def __init__(self, function: Callable[[], None], *, name: str) -> None:
        self._function = function
        self._error: BaseException | None = None
        self._ended = threading.Event()
        _wait_at_exit()
        _running.add(self)
        threading.Thread(target=self._run, name=name).start()

    def wait(self) -> None:
        """Waits until the function has ended; raises its error, at each call."""
        self._ended.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)

    def wait_ended(self) -> None:
        """Waits until the function has ended; raises nothing."""
        self._ended.wait()

    def is_done(self) -> bool:
        return self._ended.is_set()

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:
            self._error = error
        finally:
            del self._function
            self._ended.set()


@functools.cache
def _wait_at_exit() -> None:
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(_wait_for_all)


def _wait_for_all() -> None:
    for call in list(_running):
        call.wait_ended()
