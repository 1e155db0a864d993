"""The environment of a price, beside the program: the mesh, the devices, JAX and its settings."""

import datetime
import functools
import hashlib
import os
import platform
from typing import Any

import jax
import jaxlib
from jax.sharding import Mesh

from jaxquard.pricing.host_cores import num_cores
from jaxquard.pricing.measure.machine.steady_cpu import is_memory_kept
from jaxquard.pricing.price import Provenance

# Settings of JAX that change what a jaxpr lowers or compiles to.
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_use_shardy_partitioner",
    "jax_disable_most_optimizations",
    "jax_optimization_level",
    "jax_memory_fitting_level",
    "jax_exec_time_optimization_effort",
)
# More of them, which count only where they differ from JAX's defaults, so that earlier prices stay valid.
_RARE_SETTINGS = {"jax_compiler_enable_remat_pass": True, "jax_memory_fitting_effort": 0.0}
# Counts how programs are prepared for the compiler beyond what their fingerprints show: what `gather_grouped` and
# `compiler_options` do came with the second, values like those of a training with the third.
_PREPARATION = 3
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# How many virtual devices there are is the mesh's to say.
_NO_MATTER = ("--xla_force_host_platform_device_count", "--xla_dump_")

# NCCL's settings that only change how much it logs; all others may change how long a collective takes.
_NCCL_LOGS = ("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")


def device_kind(mesh: Mesh) -> str:
    """Returns the device kind as JAX names it; on a CPU, which it calls "cpu", the model and the cores follow."""
    device = mesh.devices.flat[0]
    if device.platform != "cpu":
        return device.device_kind
    return f"{device.device_kind}: {_processor()}, {num_cores()} cores"


@functools.cache
def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        return lines[0]
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def provenance_of(mesh: Mesh, *, num_runs: int, was_stopped_early: bool = False) -> Provenance:
    """Returns the source of what is measured on a mesh now."""
    return Provenance(
        pricer="measured",
        jax_version=jax.__version__,
        platform=mesh.devices.flat[0].platform,
        device_kind=device_kind(mesh),
        num_devices=mesh.size,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        num_runs=num_runs,
        was_stopped_early=was_stopped_early,
    )


def environment_key(mesh: Mesh, **measured: Any) -> str:
    """A hash of all of it, and of how the measurement is made."""
    device = mesh.devices.flat[0]
    parts: dict[str, Any] = {
        "preparation": _PREPARATION,
        "mesh": (tuple(mesh.shape.items()), tuple(map(str, mesh.axis_types)), _order(mesh)),
        "jax": (jax.__version__, jaxlib.__version__),
        "device": (device.platform, device_kind(mesh), getattr(device.client, "platform_version", "")),
        "settings": [(name, str(getattr(jax.config, name, None))) for name in _SETTINGS],
        "flags": [_flags(name, device.platform) for name in _FLAGS],
        "measured": sorted(measured.items()),
    }
    rare = [(name, getattr(jax.config, name, usual)) for name, usual in _RARE_SETTINGS.items()]
    changed = [(name, str(value)) for name, value in rare if value != _RARE_SETTINGS[name]]
    if changed:
        parts["rare settings"] = changed
    if device.platform == "cpu" and is_memory_kept():
        parts["memory"] = "kept"
    links = sorted(item for item in os.environ.items() if item[0].startswith("NCCL_") and item[0] not in _NCCL_LOGS)
    if device.platform == "gpu" and links:
        parts["links"] = links
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _order(mesh: Mesh) -> list[int]:
    """Returns the place of each device, from the smallest id on: it decides the links, and the ids do not."""
    ids = [device.id for device in mesh.devices.flat]
    return [number - min(ids) for number in ids]


def _flags(name: str, platform_name: str) -> list[str]:
    """Returns the XLA flags that matter on the platform."""
    no_matter = _NO_MATTER if platform_name == "cpu" else (*_NO_MATTER, "--xla_cpu_")
    return sorted(flag for flag in os.environ.get(name, "").split() if not flag.startswith(no_matter))
