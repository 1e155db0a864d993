"""The log of a run: the output of all attempts, line by line, with the supervisor's own notes and their times.

A disk that is full must not end a run: what cannot be written is left out, and the log says so when it can again. Nor
may a terminal that stands still hold it up, as signals would wait too: after a while it misses what comes.
"""

import fcntl
import os
import select
import time
from collections import deque
from pathlib import Path

_LONGEST_LINE = 64 * 1024
_KEPT_LINES = 50
_PATIENCE_S = 5.0
"""The time that a terminal, or the reader of a pipe, may take nothing: Ctrl-S, a pager."""


class RunLog:
    """Appends to the log file of a run.

    Args:
        path: the file; an earlier log of the same run is continued.

    Raises:
        BlockingIOError: another supervisor writes it now.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lost_bytes = 0
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise

    def note(self, text: str) -> None:
        """Writes a line of the supervisor, with the time."""
        self.write(f"[jaxquard {time.strftime('%Y-%m-%d %H:%M:%S')}] {text}\n".encode())

    def write(self, content: bytes) -> None:
        """Writes whole lines."""
        if self._lost_bytes:
            content = f"[jaxquard] {self._lost_bytes} bytes could not be written here\n".encode() + content
        try:
            written = os.write(self._file, content)
        except OSError:
            written = 0
        # A disk that fills up takes the beginning; a gap in the middle of a line shows as such.
        lost = len(content) - written
        self._lost_bytes = 0 if lost == 0 else self._lost_bytes + lost

    def close(self) -> None:
        os.close(self._file)


class OutputStream:
    """One output of a program, stdout or stderr, on its way to the terminal and into the log.

    The terminal gets it as it comes. The log gets lines, so that those of the two outputs do not mix.

    Attributes:
        source: the pipe to read from.
        last_lines: the last lines.
    """

    def __init__(self, source: int, *, terminal: int, log: RunLog) -> None:
        self.source = source
        self.last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._terminal: int | None = terminal
        self._log, self._partial = log, b""
        self._missed_bytes = 0

    def forward(self) -> bool:
        """Reads what is there and passes it on; returns False at the end of the output."""
        content = os.read(self.source, 1 << 16)
        if not content:
            return False
        self._show(content)
        *lines, self._partial = (self._partial + content).split(b"\n")
        if len(self._partial) > _LONGEST_LINE:
            lines, self._partial = [*lines, self._partial], b""
        self._keep(lines)
        return True

    def close(self) -> None:
        """Writes the last line, if it has no end."""
        if self._partial:
            self._keep([self._partial])
            self._partial = b""
        os.close(self.source)

    def _show(self, content: bytes) -> None:
        if self._missed_bytes and self._terminal is not None and takes_output(self._terminal, timeout_s=0):
            content = f"\n[jaxquard] {self._missed_bytes} bytes are in the log alone\n".encode() + content
            self._missed_bytes = 0
        while content and self._terminal is not None:
            if self._missed_bytes or not takes_output(self._terminal):
                self._missed_bytes += len(content)
                return
            try:
                # So much fits without waiting when the kernel says that something does.
                content = content[os.write(self._terminal, content[: select.PIPE_BUF]) :]
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                # The terminal or the reader of a pipe is gone. Training goes on, and the log has the rest.
                self._terminal = None

    def _keep(self, lines: list[bytes]) -> None:
        if lines:
            self._log.write(b"".join(line + b"\n" for line in lines))
            self.last_lines.extend(line[:1000].decode(errors="replace") for line in lines[-_KEPT_LINES:])


def takes_output(descriptor: int, *, timeout_s: float | None = None) -> bool:
    """Waits until a terminal takes something, or is gone, which a write finds out; returns False if it stands still."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(1e3 * (_PATIENCE_S if timeout_s is None else timeout_s)))
