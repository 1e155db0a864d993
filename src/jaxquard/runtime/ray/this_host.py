"""What a process tells of the host that it is on."""

from pathlib import Path


def own_boot() -> str:
    """Tells one kernel from another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def count_oom_kills() -> int:
    """How many processes the kernel of this host has killed for their memory."""
    with open("/proc/vmstat") as file:
        kills = [line.split()[1] for line in file if line.startswith("oom_kill ")]
    return int(kills[0]) if kills else 0
