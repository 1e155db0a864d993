"""What a process tells of the host that it is on."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path


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
