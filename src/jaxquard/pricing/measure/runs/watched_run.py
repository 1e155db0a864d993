"""Runs things in a thread that can be left behind: what stalls, and Ctrl-C, end the waiting and not the process.

A thread that waits for devices cannot be interrupted in Python. So another one waits, and this one watches it.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxquard.pricing.end_of_time import StalledError

_PIECE_S = 0.5
_END = object()


class WatchedRun:
    """One thread that runs one thing at a time; a fresh one replaces it where it stalls."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def run(self, do: Callable[[], Any], *, limit_s: float) -> Any:
        """Returns what `do` returns, or raises what it raises.

        Raises:
            StalledError: if it takes longer than `limit_s`.
        """
        if self._thread is None:
            self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self._thread = threading.Thread(target=_serve, args=(self._work, self._done), daemon=True)
            self._thread.start()
        self._work.put(do)
        try:
            result, error = self._wait(limit_s)
        except BaseException:
            self.end(wait_s=0.0)
            raise
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # It knows this call, and the two would keep each other, and the arrays of the run, in memory.

    def _wait(self, limit_s: float) -> Any:
        end_s = time.monotonic() + limit_s
        while (left_s := end_s - time.monotonic()) > 0:
            # In short pieces: a signal that another thread has received is seen between them.
            with contextlib.suppress(queue.Empty):
                return self._done.get(timeout=min(left_s, _PIECE_S))
        raise StalledError(f"no result within {limit_s:g} s")

    def end(self, *, wait_s: float) -> None:
        """Lets the thread go, after what it is at."""
        if self._thread is not None:
            self._work.put(_END)
            self._thread.join(wait_s)
        self._thread = None


def _serve(work: queue.SimpleQueue[Any], done: queue.SimpleQueue[Any]) -> None:
    while (do := work.get()) is not _END:
        try:
            done.put((do(), None))
        except Exception as error:  # Raised again by the one who waits.
            done.put((None, error))
        del do
