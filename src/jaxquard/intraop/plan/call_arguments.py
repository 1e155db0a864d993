"""Arrays with buffers of their own, so that a step may take them over.

Two leaves of a state can be one array (zeros for both moments of an optimizer), and `jax.device_put` shares the buffer
of the device on which an array already is: both would donate the same memory, which ends the process on CPU.

Weakly typed arguments: numbers that take the dtype of what they meet, as `0.1` and `jnp.array(0.1)` do.

A state that comes back from a checkpoint has strong types where the one that was planned for had weak ones. Nearly
always the step computes the same; where it does not, it returns other dtypes, and the plan is for another step.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxquard.errors import ShardingError
from jaxquard.intraop.step.fingerprint import WEAK, type_text
from jaxquard.intraop.step.traced_step import argument_names, trace_jaxpr, type_of


def as_planned(args: Sequence[Any], types: Mapping[str, str]) -> tuple[Any, ...]:
    """The types of arguments, each weak where that of the plan is.

    Args:
        types: of the plan's arguments, by name, as text.
    """
    leaves, tree = jax.tree.flatten(tuple(args))
    found = []
    for name, leaf in zip(argument_names(args), leaves, strict=True):
        own = type_of(leaf)
        is_planned_weak = types.get(name, type_text(own)).endswith(WEAK)
        found.append(jax.ShapeDtypeStruct(own.shape, own.dtype, weak_type=is_planned_weak))
    return jax.tree.unflatten(tree, found)


def check_weak_types(step: Callable[..., Any], args: Sequence[Any], types: Mapping[str, str]) -> None:
    """Refuses arguments for which `jax.jit` would return other dtypes, as other ones are weakly typed than planned.

    Raises:
        ShardingError: with the first that is.
    """
    own, planned = jax.tree.map(type_of, tuple(args)), as_planned(args, types)
    texts = [tuple(map(type_text, pair)) for pair in zip(jax.tree.leaves(planned), jax.tree.leaves(own), strict=True)]
    names = argument_names(args)
    different = [(name, *pair) for name, pair in zip(names, texts, strict=True) if pair[0] != pair[1]]
    if different and _result_types(step, own) != _result_types(step, planned):
        name, before, now = different[0]
        raise ShardingError(
            f"the plan was made for another step: {name} was {before} and is {now}. Search again for this one."
        )


def _result_types(step: Callable[..., Any], types: Sequence[Any]) -> Any:
    leaves, tree = jax.tree.flatten(trace_jaxpr(step, types)[1])
    return tree, [(leaf.shape, leaf.dtype) for leaf in leaves]


def copy_leaf(leaf: Any) -> Any:
    """The same leaf in memory of its own; a number has none."""
    if isinstance(leaf, np.ndarray):
        return np.array(leaf)
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf


def without_repeats(leaves: list[Any], *, others: frozenset[int] = frozenset()) -> list[Any]:
    """The leaves, those copied that are the same array as one before, or as one of the others, given by their ids."""
    numbers = set(map(id, leaves))
    if len(numbers) == len(leaves) and numbers.isdisjoint(others):
        return leaves
    seen, found = set(others), []
    for leaf in leaves:
        found.append(copy_leaf(leaf) if id(leaf) in seen else leaf)
        seen.add(id(leaf))
    return found


def with_own_buffers(arrays: Sequence[Any], *, places: Collection[int]) -> list[Any]:
    """The arrays, those at the places copied that share a buffer with one at another place, or at a place before.

    Of those at other places, only such are looked at as have the shape and dtype of one at the places: that takes a
    while.
    """
    own = set(places)
    types = {(arrays[place].shape, arrays[place].dtype) for place in places}
    others = [array for place, array in enumerate(arrays) if place not in own and (array.shape, array.dtype) in types]
    seen = {buffer for array in others for buffer in _buffers(array)}
    found = list(arrays)
    for place in places:
        buffers = _buffers(arrays[place])
        if not seen.isdisjoint(buffers):
            found[place] = arrays[place].copy()
        seen.update(buffers)
    return found


def _buffers(array: Any) -> list[tuple[int, int]]:
    """Where its parts lie, by device; an array of no elements lies nowhere, and one that is traced has no memory."""
    if isinstance(array, jax.core.Tracer) or not array.size:
        return []
    return [(shard.device.id, shard.data.unsafe_buffer_pointer()) for shard in array.addressable_shards]
