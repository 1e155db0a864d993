"""Records about a process and its host, which the controller can read, also after its death.

An `ActivityFile` says what the process is doing. It is a small file in shared memory, so that a post-mortem can read it
when the process has died (see `controller.actor_loss`). The next process in the same folder removes it then: the writer
holds a lock, which ends with its life.
"""

import contextlib
import fcntl
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

_SIZE_BYTES = 256
_PREFIX, _SUFFIX = "jaxquard-", ".activity"


class ActivityFile:
    """Written by the process; costs about as much as an assignment."""

    def __init__(self, directory: str | None = None) -> None:
        _remove_stale(Path(directory or tempfile.gettempdir()))
        self._descriptor, self.path = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=directory)
        with contextlib.suppress(OSError):  # Where there are no locks, nobody removes it.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        os.truncate(self._descriptor, _SIZE_BYTES)
        self.text = ""
        self._memory = mmap.mmap(self._descriptor, _SIZE_BYTES)

    def write(self, text: str) -> None:
        self.text = text
        self._memory[:] = text.encode()[: _SIZE_BYTES - 1].ljust(_SIZE_BYTES, b"\0")

    def remove(self) -> None:
        """Removes the file; a second call does nothing. What is written later, nobody reads."""
        Path(self.path).unlink(missing_ok=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _remove_stale(directory: Path) -> None:
    """Removes the files of processes of this user that are dead."""
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # It is another user's, its writer is alive, or another process removes it.
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                # An empty one is being made at this moment.
                if os.fstat(descriptor).st_size == _SIZE_BYTES:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
            finally:
                os.close(descriptor)


def own_boot() -> str:
    """Returns the id of this boot of the kernel: equal for processes that share its monotonic clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def count_oom_kills() -> int:
    """Counts the processes that the kernel of this host has killed for their memory."""
    with open("/proc/vmstat") as file:
        kills = [line.split()[1] for line in file if line.startswith("oom_kill ")]
    return int(kills[0]) if kills else 0


def tail_reader(paths: Sequence[str], *, num_lines: int = 20, last_bytes: int = 1 << 16) -> Callable[[], str]:
    """Returns a function that reads the last lines of logs, of each in turn, but for those with which Ray marks them.

    It can be sent to another host by value: everything that it needs is inside.
    """

    def read() -> str:
        import os

        marks = (":job_id:", ":actor_name:", ":task_name:")
        tail: list[str] = []
        for path in paths:
            try:
                with open(path, "rb") as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - last_bytes))
                    lines = file.read().decode(errors="replace").splitlines()
            except OSError:
                continue
            tail += [line for line in lines if line and not line.startswith(marks)][-num_lines:]
        return "\n".join(tail)

    return read
