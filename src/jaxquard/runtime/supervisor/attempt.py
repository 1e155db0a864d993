"""One attempt to run a program: its process, its environment, its temporary folders, its output, and its end.

The program has, in its environment:

    JAXQUARD_RUN_ID      the name of the run; the same in all attempts
    JAXQUARD_RUN_FOLDER  the folder of the run, in which its log is
    JAXQUARD_RESTART     the number of restarts before this attempt: 0 in the first one
    JAXQUARD_RUN_TMPDIR  a temporary folder with a short path, for sockets; removed after the attempt
    TMPDIR               a temporary folder; removed after the attempt
"""

import functools
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxquard.runtime.supervisor.orphan_guard import OrphanGuard
from jaxquard.runtime.supervisor.process_tree import (
    ProcessId,
    bind_to_parent,
    end_all,
    list_descendants,
    reap_children,
)
from jaxquard.runtime.supervisor.restart_policy import find_error_line
from jaxquard.runtime.supervisor.run_log import OutputStream, RunLog

RUN_TMPDIR = "JAXQUARD_RUN_TMPDIR"
_LEFT_GRACE_S = 5.0
"""The time for processes that are still there after their program: Ray's, what removes Ray's files, loaders of data."""
_DRAIN_S = 2.0
_SHORT = Path("/tmp")


class Attempt:
    """A program that runs.

    Args:
        command: the words that start it.
        variables: environment variables of the run.
        log: the log of the run.
        terminal: the file descriptors to which its stdout and stderr go.
        wakeup: a file descriptor that ends `wait` when it is readable.
        grace_s: the time that it has to save and to end when the supervisor is killed.

    Attributes:
        pid: the id of its process.
        returncode: its exit code once it has ended, -n for a signal n.
        last_output_s: the time of its last output, on the monotonic clock.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        variables: Mapping[str, str],
        log: RunLog,
        terminal: tuple[int, int],
        wakeup: int,
        grace_s: float,
    ) -> None:
        self.returncode: int | None = None
        self.last_output_s = time.monotonic()
        self._grace_s, self._folders = grace_s, _make_folders()
        self._guard = self._make_guard()
        pipes = [os.pipe() for _ in terminal]
        self._streams = [
            OutputStream(source, terminal=shown, log=log) for (source, _), shown in zip(pipes, terminal, strict=True)
        ]
        try:
            self._process = self._start(command, variables, [sink for _, sink in pipes])
        except BaseException:
            self._clean()
            raise
        finally:
            for _, sink in pipes:
                os.close(sink)
        self.pid = self._process.pid
        self._guard.watch(self.pid)
        self._selector = selectors.DefaultSelector()
        self._selector.register(wakeup, selectors.EVENT_READ)
        for stream in self._streams:
            self._selector.register(stream.source, selectors.EVENT_READ, stream)

    @property
    def error_line(self) -> str:
        """The line on stderr that names the error."""
        return find_error_line(self._streams[1].last_lines)

    def wait(self, timeout_s: float) -> bool:
        """Passes on output until a signal comes or a time is over; returns True if the program has ended."""
        for key, _ in self._selector.select(timeout_s):
            if key.data is not None:
                self._forward(key.data)
        self._reap()
        return self.returncode is not None

    def send(self, number: int) -> None:
        """Sends a signal to the program; to no other process, as it decides what its own shall do."""
        if self.returncode is None:  # Until it is asked for its status, no other process gets its id.
            os.kill(self.pid, number)

    def close(self, *, at_once: bool) -> tuple[ProcessId, ...]:
        """Ends every process that the program has started; returns those that cannot be ended."""
        if self.returncode is None:
            self.send(signal.SIGKILL)
        left = end_all(self._find, grace_s=0 if at_once else _LEFT_GRACE_S, reap=self._reap)
        end_s = time.monotonic() + _DRAIN_S
        while self._has_output() and time.monotonic() < end_s:
            self.wait(0.05)
        self._selector.close()
        self._clean()
        return left

    def _has_output(self) -> bool:
        return len(self._selector.get_map()) > 1

    def _forward(self, stream: OutputStream) -> None:
        self.last_output_s = time.monotonic()
        if not stream.forward():
            self._selector.unregister(stream.source)

    def _find(self) -> list[ProcessId]:
        return [each for each in list_descendants(os.getpid()) if each.pid != self._guard.pid]

    def _reap(self) -> None:
        ended = reap_children()
        if self.pid in ended:
            self.returncode = self._process.returncode = ended[self.pid]
        if self._guard.pid in ended:
            self._guard.close()
            self._guard = self._make_guard()
            self._guard.watch(self.pid)

    def _make_guard(self) -> OrphanGuard:
        mark = (RUN_TMPDIR, str(self._folders[0]))
        return OrphanGuard(mark=mark, grace_s=self._grace_s, folders=self._folders)

    def _start(
        self, command: Sequence[str], variables: Mapping[str, str], sinks: Sequence[int]
    ) -> "subprocess.Popen[bytes]":
        short, usual = self._folders[0], self._folders[-1]
        ours = {
            # Lines come when they are written, and a signal that ends the program shows where it was.
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            # Where Ray looks for a cluster that runs on this host.
            "RAY_TMPDIR": os.environ.get("TMPDIR", str(_SHORT)),
            **os.environ,
            **variables,
            RUN_TMPDIR: str(short),
            "TMPDIR": str(usual),
        }
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sinks[0],
            stderr=sinks[1],
            env=ours,
            start_new_session=True,
            preexec_fn=functools.partial(bind_to_parent, os.getpid(), signal.SIGTERM),
        )

    def _clean(self) -> None:
        for stream in self._streams:
            stream.close()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._guard.close()


def _make_folders() -> list[Path]:
    """Makes temporary folders: one with a short path, and, where that is elsewhere, one where the user wants them."""
    usual = Path(tempfile.gettempdir())
    parents = [usual] if usual == _SHORT or not os.access(_SHORT, os.W_OK) else [_SHORT, usual]
    return [Path(tempfile.mkdtemp(prefix="jqr-", dir=parent)) for parent in parents]
