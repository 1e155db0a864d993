"""Ends what a program has started when the supervisor itself is killed with SIGKILL.

The kernel then sends SIGTERM to the program (`bind_to_parent`), and everything below it loses its parent. A small
process, forked from the supervisor, waits for this on a pipe: it gives the program its grace time, ends all processes
that carry the mark of the attempt in their environment, and removes its temporary folders.
"""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from jaxquard.runtime.supervisor.process_tree import end_all, is_living, list_marked, living_process

_DONE = b"done"
_POLL_S = 0.05
_LEFT_GRACE_S = 2.0


class OrphanGuard:
    """A process that takes the supervisor's place when that is killed.

    Args:
        mark: the environment variable, and its value, that the processes of the attempt have.
        grace_s: the time that the program has to save and to end.
        folders: the temporary folders of the attempt.
    """

    def __init__(self, *, mark: tuple[str, str], grace_s: float, folders: Sequence[Path]) -> None:
        reading, self._writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # Nothing may return from here into the supervisor's code.
            try:
                _leave_terminal(keep=reading)
                _guard(reading, mark=mark, grace_s=grace_s, folders=folders)
            finally:
                os._exit(0)
        os.close(reading)

    def watch(self, pid: int) -> None:
        """Names the program, once it has started."""
        self._write(f"{pid}\n".encode())

    def close(self) -> None:
        """Ends the guard: nothing of the attempt is left."""
        self._write(_DONE)
        os.close(self._writing)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _write(self, content: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # Somebody has killed the guard.
            os.write(self._writing, content)


def _leave_terminal(*, keep: int) -> None:
    """Leaves the session, its signals and its files, so that a terminal or a pipe ends with the supervisor."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, keep)
    os.closerange(keep + 1, 1024)


def _guard(reading: int, *, mark: tuple[str, str], grace_s: float, folders: Sequence[Path]) -> None:
    content = b""
    while more := os.read(reading, 64):
        content += more
    if content.endswith(_DONE):
        return
    pid = int(content.strip() or 0)
    program, end_s = living_process(pid) if pid else None, time.monotonic() + grace_s
    while program is not None and is_living(program) and time.monotonic() < end_s:
        time.sleep(_POLL_S)
    end_all(lambda: [each for each in list_marked(*mark) if each.pid != os.getpid()], grace_s=_LEFT_GRACE_S)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
