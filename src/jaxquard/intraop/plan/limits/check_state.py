"""Refuses a memory limit that no plan can meet, before anything is priced.

Between steps a device holds its part of every argument. No storage splits a leaf into more parts than the mesh axes
that divide its dims make together, so the sum of the smallest parts bounds every plan from below.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

from jaxquard.errors import InfeasibleShardingError
from jaxquard.intraop.step.traced_step import TracedStep, argument_number
from jaxquard.ir.jaxpr_tools import size_bytes, variables
from jaxquard.pricing import CompilePricer, MeasuredPricer, MockGpuPricer, Pricer, RooflinePricer

_MOST_LISTED = 3
# They count the arguments of a program as they are; what a custom pricer counts is its own affair.
_COUNTING = (MeasuredPricer, CompilePricer, MockGpuPricer, RooflinePricer)


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
        f"{limit} ({_text(memory_limit_bytes)}) cannot hold the arguments of the step: sharded over all of "
        f"{' x '.join(f'{axis}={size}' for axis, size in axes.items())} they take {total} bytes ({_text(total)}) of "
        f"each device before anything is computed ({', '.join(terms)}). "
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


def _text(count_bytes: float) -> str:
    return f"{count_bytes / 2**30:.2f} GiB" if count_bytes >= 2**27 else f"{count_bytes / 2**20:.2f} MiB"
