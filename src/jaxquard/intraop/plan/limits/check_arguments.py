"""Checks the arguments of a search, before anything is traced."""

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from jaxquard.errors import ShardingError
from jaxquard.pricing import CompilePricer, MeasuredPricer, MockGpuPricer, PriceCache

# They price for a cluster and run nothing on the mesh, of which only the axes matter.
ClusterPricer = CompilePricer | MockGpuPricer


def check_types(
    args: object, mesh: object, pricer: object, memory_limit_bytes: object, num_finalists: object, loop_budget_s: object
) -> None:
    """Checks the types and the ranges of a search's arguments.

    Raises:
        ShardingError: if one makes no sense.
    """
    if not isinstance(args, tuple | list):
        raise ShardingError(
            f"args must be a tuple of the step's arguments, but is of type {type(args).__name__}. For `step(state, "
            "batch)` pass (state, batch); for `step(state)` pass (state,)."
        )
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise ShardingError(f"mesh must be a jax.sharding.Mesh, but is {mesh!r}. Make one with jax.make_mesh.")
    devices = mesh.devices.flat if isinstance(mesh, Mesh) and not isinstance(pricer, ClusterPricer) else ()
    elsewhere = {device.process_index for device in devices} - {jax.process_index()}
    if elsewhere:
        raise ShardingError(
            f"the mesh has devices of other processes ({', '.join(map(str, sorted(elsewhere)))}), which would have to "
            "run every candidate as often as this one. Search on the devices of one process (jax.local_devices()), or "
            "with a pricer that needs none of them (CompilePricer, MockGpuPricer)."
        )
    _check_numbers(memory_limit_bytes, num_finalists)
    is_time = isinstance(loop_budget_s, int | float | np.number) and not isinstance(loop_budget_s, bool)
    if not is_time or not loop_budget_s >= 0:
        raise ShardingError(f"loop_budget_s={loop_budget_s!r}, but it is a number of seconds, 0 or more. 300 is usual.")


def check_budget(time_budget_s: object) -> None:
    """Checks a budget of time.

    Raises:
        ShardingError: if it is no number of seconds.
    """
    is_time = isinstance(time_budget_s, int | float | np.number) and not isinstance(time_budget_s, bool)
    if time_budget_s not in (None, "default") and (not is_time or not time_budget_s > 0):
        raise ShardingError(
            f"time_budget_s={time_budget_s!r}, but it is a number of seconds above 0. None prices everything."
        )


def check_pricer(pricer: object, cache: object, mesh: Mesh | AbstractMesh) -> None:
    """Checks that a pricer can price for a mesh, and that a cache is one.

    Raises:
        ShardingError: if not.
    """
    missing = [name for name in ("price_all", "compare") if not callable(getattr(pricer, name, None))]
    if pricer is not None and missing:
        raise ShardingError(
            f"pricer must be a jaxquard.pricing.Pricer, but {type(pricer).__name__} has no {' and no '.join(missing)}. "
            "Leave it out to measure on the mesh."
        )
    if isinstance(mesh, AbstractMesh) and (pricer is None or isinstance(pricer, MeasuredPricer)):
        raise ShardingError(
            "the mesh has no devices (jax.sharding.AbstractMesh), so nothing can be measured on it. Pass a pricer for "
            "a cluster, such as jaxquard.pricing.CompilePricer('h100-8', mesh), or a mesh of devices."
        )
    if isinstance(pricer, ClusterPricer) and dict(pricer.mesh.shape) != dict(mesh.shape):
        raise ShardingError(
            f"the pricer is for a mesh of {dict(pricer.mesh.shape)}, but the one to plan for is {dict(mesh.shape)}. "
            "Make it with the same mesh."
        )
    if isinstance(pricer, MeasuredPricer) and isinstance(mesh, Mesh) and pricer.mesh != mesh:
        raise ShardingError(
            f"the pricer measures on another mesh than the one to plan for: {_describe(pricer.mesh)}, not "
            f"{_describe(mesh)}. Make it with MeasuredPricer(mesh)."
        )
    if cache is not None and cache != "default" and not isinstance(cache, PriceCache):
        raise ShardingError(
            f"cache must be a jaxquard.pricing.PriceCache, None or 'default', but is {cache!r}. For a folder pass "
            "PriceCache(folder)."
        )


def _describe(mesh: Mesh) -> str:
    sizes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    return f"({sizes}) of devices {', '.join(str(device.id) for device in mesh.devices.flat)}"


def _check_numbers(memory_limit_bytes: Any, num_finalists: Any) -> None:
    is_size = isinstance(memory_limit_bytes, int | float | np.number) and not isinstance(memory_limit_bytes, bool)
    if memory_limit_bytes is not None and (not is_size or not math.isfinite(memory_limit_bytes)):
        raise ShardingError(
            f"memory_limit_bytes={memory_limit_bytes!r} is no number of bytes. 16 MiB are 16 * 2**20; None is all that "
            "the devices have."
        )
    if memory_limit_bytes is not None and memory_limit_bytes <= 0:
        raise ShardingError(
            f"memory_limit_bytes={memory_limit_bytes!r} leaves nothing. 16 MiB are 16 * 2**20; None is all that the "
            "devices have."
        )
    is_count = isinstance(num_finalists, int | np.integer) and not isinstance(num_finalists, bool)
    if not is_count or num_finalists < 0:
        raise ShardingError(
            f"num_finalists={num_finalists!r}, but it is a number of plans. 0 prices the baselines alone, 8 is usual."
        )


def check_axes(axes: dict[str, int], batch_axis: str | None, every_combination: bool) -> str | None:
    """Returns the axis over which every block shards its batch; None if blocks are free on every axis.

    Raises:
        ShardingError: if the mesh has no such axis, or too many.
    """
    if not 1 <= len(axes) <= 2:
        raise ShardingError(f"a mesh has one or two axes to shard over, but found {len(axes)}: {axes}.")
    if batch_axis is not None and batch_axis not in axes:
        raise ShardingError(
            f"batch_axis={batch_axis!r}, but the mesh has the axes {', '.join(axes)}. Name one of them, or leave it "
            "out for the first of two axes."
        )
    if batch_axis is not None and every_combination:
        raise ShardingError(
            f"batch_axis={batch_axis!r} holds one axis to the batch, but every_combination=True holds none. Pass one "
            "of the two."
        )
    if every_combination or (batch_axis is None and len(axes) == 1):
        return None
    return batch_axis or next(iter(axes))
