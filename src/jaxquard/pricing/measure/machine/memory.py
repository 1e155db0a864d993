"""The memory that a compiled program needs on a device, and the memory that there is.

On CPU too much is not refused: the system ends the process. So what cannot fit is never run.
"""

from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from jaxquard.pricing.measure.machine.steady_cpu import retained_heap_bytes


def peak_bytes(compiled: Any) -> int:
    """Bytes on each device: arguments, temporaries and outputs, less what they share."""
    sizes = compiled.memory_analysis()
    return int(
        sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    )


def available_bytes(mesh: Mesh) -> int | None:
    """Bytes on each device that a program can have; None if nobody says."""
    devices = list(mesh.devices.flat)
    if devices[0].platform == "cpu":
        host = _host_bytes()
        # What the process keeps for itself it can use again.
        return None if host is None else (host + retained_heap_bytes()) // len(devices)
    stats = [device.memory_stats() or {} for device in devices]
    limits = [stat["bytes_limit"] - stat.get("bytes_in_use", 0) for stat in stats if "bytes_limit" in stat]
    return min(limits, default=None)


def capacity_bytes(mesh: Mesh) -> int | None:
    """Bytes on each device that a training step can have: all of an accelerator's, on CPU what is free now.

    None if nobody says.
    """
    devices = list(mesh.devices.flat)
    if devices[0].platform == "cpu":
        return available_bytes(mesh)
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    return min((limit for limit in limits if limit is not None), default=None)


def _host_bytes() -> int | None:
    """Returns the free bytes of the host, or of the container if those are fewer; None where Linux does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
    left = _container_bytes(Path("/sys/fs/cgroup"))
    return free if left is None else min(free, left)


def _container_bytes(folder: Path) -> int | None:
    """Returns the bytes left to a container, with cached files that it could drop; None if it has no limit."""
    try:
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        lines = (folder / "memory.stat").read_text().splitlines()
        files = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, StopIteration, ValueError):
        return None
    return max(0, limit - used + files)
