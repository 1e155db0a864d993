"""Arrays with buffers of their own, so that a step may take them over.

Two leaves of a state can be one array (zeros for both moments of an optimizer), and `jax.device_put` shares the buffer
of the device on which an array already is: both would donate the same memory, which ends the process on CPU.
"""

from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np


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
