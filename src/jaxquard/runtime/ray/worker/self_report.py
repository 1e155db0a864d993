"""What a process tells of the host that it is on.

What a process is doing, kept where it can be read after the process has died: in a small file of shared memory.
"""

import mmap
import os
import tempfile
from collections import deque
from collections.abc import Sequence
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


def read_activity(raw: bytes) -> str:
    """The text in the bytes of a activity's file."""
    return raw.rstrip(b"\0").decode(errors="replace")


def own_boot() -> str:
    """Tells one kernel from another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def count_oom_kills() -> int:
    """How many processes the kernel of this host has killed for their memory."""
    with open("/proc/vmstat") as file:
        kills = [line.split()[1] for line in file if line.startswith("oom_kill ")]
    return int(kills[0]) if kills else 0


def tail_of(paths: Sequence[str], *, num_lines: int = 20) -> str:
    """The last lines of files here, of each in turn."""
    lines: list[str] = []
    for path in paths:
        with open(path, errors="replace") as file:
            lines += deque(file, maxlen=num_lines)
    return "".join(lines).rstrip()
