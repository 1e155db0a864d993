"""Shards what is computed whole on every device though all of its users take slices of it.

    y = scatter-add zeros targets ones ; z = add x y      x: sharded over data; zeros, targets, ones: whole
    =>
    y, sharded over data

The shardings of a program are followed from inputs to outputs. XLA's propagation goes both ways: where the inputs of an
equation are whole, it computes the shard that its users want, from slices of these, and nothing moves.
"""

import heapq
import math
from collections.abc import Container, Iterable
from dataclasses import replace

from jaxquard.pricing.roofline.equation_partitions import EquationPartition
from jaxquard.pricing.roofline.partition import ChosenPartition
from jaxquard.pricing.roofline.prepare import NO_VALUE, PreparedEquation, PreparedJaxpr
from jaxquard.pricing.roofline.value_dims import Dims


def follow_users(
    prepared: PreparedJaxpr,
    dims: list[Dims],
    chosen: list[ChosenPartition],
    *,
    sizes: tuple[int, ...],
    sliced: Iterable[int],
    held: Container[int],
) -> None:
    """Rewrites the shardings of values, and of the equations that compute them.

    Args:
        dims: of each value; those of values that become sharded are replaced.
        chosen: of each equation; likewise.
        sizes: of the mesh axes.
        sliced: values of which some user takes a slice.
        held: values that have to stay as they are.
    """
    # The last equation first: what it takes slices of comes before it.
    waiting = [-prepared.definitions[number] for number in sliced if prepared.definitions[number] != NO_VALUE]
    heapq.heapify(waiting)
    done = NO_VALUE
    while waiting:
        position = -heapq.heappop(waiting)
        if position == done:
            continue
        done = position
        equation = prepared.equations[position]
        if len(equation.outputs) != 1 or equation.body is not None or equation.outputs[0] in held:
            continue
        found = _shard_as_used(prepared, position, dims, chosen, sizes)
        if found is None:
            continue
        chosen[position], dims[equation.outputs[0]] = found, found.out_dims[0]
        for number, needs in zip(equation.inputs, found.in_dims, strict=True):
            if number != NO_VALUE and needs != dims[number] and prepared.definitions[number] != NO_VALUE:
                heapq.heappush(waiting, -prepared.definitions[number])


def _shard_as_used(
    prepared: PreparedJaxpr, position: int, dims: list[Dims], chosen: list[ChosenPartition], sizes: tuple[int, ...]
) -> ChosenPartition | None:
    """Returns the sharding of an equation whose users all want the same shards of its result; None if there is none."""
    equation, found = prepared.equations[position], chosen[position]
    needs = _needs(prepared, equation.outputs[0], chosen)
    for axis, size in enumerate(sizes):
        wanted = {of_user[axis] for of_user in needs}
        dim = wanted.pop() if len(wanted) == 1 else None
        is_whole = found.out_dims[0][axis] is None and axis not in found.summed and size > 1
        if dim is None or not is_whole or not _has_whole_inputs(equation, dims, axis):
            continue
        partition = _find_partition(equation, dim, num_shards=size * _num_parts(found, dim, sizes))
        if partition is not None:
            found = _add_axis(found, partition, axis, size)
    return None if found is chosen[position] else found


def _needs(prepared: PreparedJaxpr, number: int, chosen: list[ChosenPartition]) -> set[Dims]:
    """Returns the shardings in which users read a value."""
    return {
        needs
        for user in prepared.users[number]
        for read, needs in zip(prepared.equations[user].inputs, chosen[user].in_dims, strict=True)
        if read == number
    }


def _has_whole_inputs(equation: PreparedEquation, dims: list[Dims], axis: int) -> bool:
    return all(number == NO_VALUE or dims[number][axis] is None for number in equation.inputs)


def _num_parts(found: ChosenPartition, dim: int, sizes: tuple[int, ...]) -> int:
    return math.prod(size for at, size in zip(found.out_dims[0], sizes, strict=True) if at == dim)


def _find_partition(equation: PreparedEquation, dim: int, *, num_shards: int) -> EquationPartition | None:
    """Returns the partition that computes shards of a dim of the result, of inputs that are whole."""
    if equation.follows_inputs:
        return EquationPartition(out_dims=(dim,), in_dims=(dim,), num_chunks=num_shards)
    fitting = (
        one
        for one in equation.work.partitions
        if one.out_dims[0] == dim and not one.is_summed and one.num_chunks % num_shards == 0
    )
    made_of_nothing = EquationPartition(out_dims=(dim,), in_dims=(None,) * len(equation.inputs), num_chunks=num_shards)
    return next(fitting, made_of_nothing if equation.name in ("broadcast_in_dim", "iota") else None)


def _add_axis(found: ChosenPartition, partition: EquationPartition, axis: int, size: int) -> ChosenPartition:
    return replace(
        found,
        in_dims=tuple(_with(of, axis, dim) for of, dim in zip(found.in_dims, partition.in_dims, strict=True)),
        out_dims=tuple(_with(of, axis, dim) for of, dim in zip(found.out_dims, partition.out_dims, strict=True)),
        letters=(*found.letters[:axis], partition.letter, *found.letters[axis + 1 :]),
        num_parts=found.num_parts * size,
    )


def _with(dims: Dims, axis: int, dim: int | None) -> Dims:
    return (*dims[:axis], dim, *dims[axis + 1 :])
