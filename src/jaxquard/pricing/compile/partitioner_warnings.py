"""Counts the values that XLA's partitioner gathers whole because it finds no better way from one sharding to another.

It warns of each on stderr, in C++ ("Involuntary full rematerialization"). During a search such a program is a bad
candidate and no news to the user, so the warnings are caught and counted. Where a process of its own compiles, they are
in its log. Where this one does, its stderr leads through another process meanwhile (`filter_stderr`), which passes
everything else on: output of other threads is neither lost nor late.
"""

import contextlib
import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_WARNING = re.compile(rb"[WE]\d{4} +\S+ +(\d+) [^\n]*Involuntary full rematerialization")
_FILTER = str(Path(__file__).with_name("filter_stderr.py"))
_STDERR = 2
# A filter that does not answer within this has ended, or the machine is more than busy.
_SYNC_LIMIT_S = 10.0


def count_rematerialized(log: bytes) -> int:
    """Returns the number of warnings in what a compiler wrote."""
    return len(_WARNING.findall(log))


class _Filter:
    """The process that filters, and the warnings that it has caught, by the thread that wrote them."""

    def __init__(self) -> None:
        theirs, self._ours = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _FILTER], stdin=theirs, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError:
            os.close(self._ours)
            raise
        finally:
            os.close(theirs)
        self._numbers = itertools.count()
        self._answered = threading.Condition()
        self._last_answer = -1
        self.threads: list[int] = []
        threading.Thread(target=self._read, name="partitioner warnings", daemon=True).start()
        self._saved = os.dup(_STDERR)
        os.dup2(self._ours, _STDERR)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as caught:
            for line in caught:
                with self._answered:
                    if line.startswith(b"\0"):
                        self._last_answer = int(line[1:])
                    elif (found := _WARNING.match(line)) is not None:
                        self.threads.append(int(found[1]))
                    self._answered.notify_all()
        with self._answered:
            self._last_answer = sys.maxsize
            self._answered.notify_all()
        self._process.wait()

    def sync(self) -> None:
        """Waits until all that was written so far is filtered."""
        number = next(self._numbers)
        os.write(self._ours, b"\0%d\n" % number)
        with self._answered:
            self._answered.wait_for(lambda: self._last_answer >= number, timeout=_SYNC_LIMIT_S)

    def end(self) -> None:
        """Gives stderr back, once all of it is out. Processes that others have started may still write through it."""
        os.dup2(self._saved, _STDERR)
        self.sync()
        os.close(self._saved)
        os.close(self._ours)


class _Redirection:
    """The stderr of this process, which all threads that compile share: the first one redirects it, the last ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._filter: _Filter | None = None
        self._compiling: list[int] = []

    def begin(self, thread: int) -> "_Filter | None":
        with self._lock:
            if self._filter is None:
                with contextlib.suppress(OSError):  # No stderr, or no more processes: warnings stay where they are.
                    self._filter = _Filter()
            if self._filter is not None:
                self._compiling.append(thread)
            return self._filter

    def end(self, thread: int, found: "_Filter") -> int:
        """Returns the number of warnings that a thread has caused; of threads that do not compile, the last one's."""
        found.sync()
        with self._lock:
            self._compiling.remove(thread)
            is_last = not self._compiling
            mine = [other for other in found.threads if other == thread or (is_last and other not in self._compiling)]
            for other in mine:
                found.threads.remove(other)
            if is_last:
                self._filter = None
                found.end()
            return len(mine)


# A process has one stderr.
_REDIRECTION = _Redirection()


@contextlib.contextmanager
def catch_warnings(on_caught: Callable[[int], None]) -> Iterator[None]:
    """Within, warnings of XLA's partitioner do not reach stderr; their number is reported at the end, however it ends.

    XLA may compile in threads of its own. Where several of ours compile at once, the last one is blamed for these.
    """
    thread = threading.get_native_id()
    found = _REDIRECTION.begin(thread)
    try:
        yield
    finally:
        if found is not None and (count := _REDIRECTION.end(thread, found)):
            on_caught(count)
