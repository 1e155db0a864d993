"""Checks the arguments of a search, and that the state fits in memory, before anything is priced.

Between steps a device holds its part of every argument. No storage splits a leaf into more parts than the mesh axes
that divide its dims make together, so the sum of the smallest parts bounds every plan from below.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from jaxquard.errors import InfeasibleShardingError, ShardingError
from jaxquard.intraop.search.chain import size_text
from jaxquard.intraop.step.traced_step import TracedStep, argument_number
from jaxquard.ir.jaxpr_tools import size_bytes, variables
from jaxquard.pricing import CompilePricer, MeasuredPricer, MockGpuPricer, PriceCache, Pricer, RooflinePricer

# They price for a cluster and run nothing on the mesh, of which only the axes matter.
ClusterPricer = CompilePricer | MockGpuPricer
_MOST_LISTED = 3
# They count the arguments of a program as they are; what a custom pricer counts is its own affair.
_COUNTING = (MeasuredPricer, CompilePricer, MockGpuPricer, RooflinePricer)


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


def check_state_fits(
    step: TracedStep, *, axes: Mapping[str, int], pricer: Pricer, memory_limit_bytes: float, is_limit_given: bool
) -> None:
    """Checks that the step's arguments alone, sharded as far as the mesh divides them, fit in memory.

    Args:
        pricer: whose prices say what a plan needs; with a custom one there is no check.
        is_limit_given: whether the limit is the user's, or else all that the devices have.

    Raises:
        InfeasibleShardingError: if they do not; it names the bytes, and the arguments that take most of them.
    """
    if not isinstance(pricer, _COUNTING):
        return
    sizes = _argument_bytes(step, tuple(axes.values()))
    total = sum(sizes.values())
    if total <= memory_limit_bytes:
        return
    returned = zip(step.inputs, step.result_of_input, strict=False)
    state = {argument_number(step.arg_names[part.leaf]) for part, result in returned if result is not None}
    limit = f"memory_limit_bytes={int(memory_limit_bytes)}" if is_limit_given else "the memory of a device"
    largest = sorted(sizes, key=lambda number: -sizes[number])[:_MOST_LISTED]
    terms = [f"{'state' if one in state else 'data'} in argument {one}: {sizes[one]}" for one in largest]
    raise InfeasibleShardingError(
        f"{limit} ({size_text(memory_limit_bytes)}) cannot hold the arguments of the step: sharded over all of "
        f"{' x '.join(f'{axis}={size}' for axis, size in axes.items())} they take {total} bytes "
        f"({size_text(total)}) of each device before anything is computed ({', '.join(terms)}). "
        f"{'Raise the limit, use' if is_limit_given else 'Use'} more devices, or keep less state."
    )


def _argument_bytes(step: TracedStep, axis_sizes: Sequence[int]) -> dict[int, int]:
    """Returns the fewest bytes of each argument on a device; leaves that nothing uses never get there."""
    used = {atom for equation in step.jaxpr.eqns for atom in variables(equation.invars)}
    used.update(variables(step.jaxpr.outvars))
    leaves = {part.leaf for part, var in zip(step.inputs, step.jaxpr.invars, strict=False) if var in used}
    sizes: dict[int, int] = {}
    for leaf in sorted(leaves):
        type_, number = step.arg_types[leaf], argument_number(step.arg_names[leaf])
        sizes[number] = sizes.get(number, 0) + -(-size_bytes(type_) // _most_parts(type_.shape, axis_sizes))
    return sizes


def _most_parts(shape: Sequence[int], axis_sizes: Sequence[int]) -> int:
    """Returns the most parts that an array has if every axis shards one dim that it divides, or none."""
    most = 1
    for dims in itertools.product((None, *range(len(shape))), repeat=len(axis_sizes)):
        parts = [1] * len(shape)
        for size, dim in zip(axis_sizes, dims, strict=True):
            if dim is not None and shape[dim] % (parts[dim] * size) == 0:
                parts[dim] *= size
        most = max(most, math.prod(parts))
    return most
