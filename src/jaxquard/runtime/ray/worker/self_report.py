"""Records about a process and its host, which the controller can read, also after its death.

An `ActivityFile` says what the process is doing. It is a small file in shared memory, so that a post-mortem can read it
when the process has died (see `controller.actor_loss`).
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

_SIZE_BYTES = 256


class ActivityFile:
    """Written by the process; costs about as much as an assignment."""

    def __init__(self, directory: str | None = None) -> None:
        descriptor, path = tempfile.mkstemp(prefix="jaxquard-", suffix=".activity", dir=directory)
        os.truncate(path, _SIZE_BYTES)
        self.path = path
        self.text = ""
        self._memory = mmap.mmap(descriptor, _SIZE_BYTES)
        os.close(descriptor)

    def write(self, text: str) -> None:
        self.text = text
        self._memory[:] = text.encode()[: _SIZE_BYTES - 1].ljust(_SIZE_BYTES, b"\0")

    def remove(self) -> None:
        Path(self.path).unlink(missing_ok=True)


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
