"""How shards move along the rows or columns of a mesh, inside `shard_map`.

`axes` are the mesh axes that make a ring, the first one varying slowest; a ring of one chip moves nothing and gives no
collective at all.

What travels has the dtype of the matrices, sums included: a chip adds in float32, and what it hands on is rounded to
bf16 if the matrices are bf16. So every transfer has the bytes that the paper and the cost model count (2 an element),
as in Megatron; a sum over P chips is rounded at most P times.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax import lax

from jaxquard.gemm.product import Axes


def ring_size(axes: Axes) -> int:
    """How many chips the ring has."""
    return math.prod(lax.axis_size(axis) for axis in axes)


def ring_index(axes: Axes) -> jax.Array | int:
    """Which of the ring's chips this is."""
    return lax.axis_index(axes) if axes else 0


def all_gather(shard: jax.Array, axes: Axes, *, dim: int) -> jax.Array:
    """The shards of all chips of the ring, side by side along `dim`."""
    return lax.all_gather(shard, axes, axis=dim, tiled=True) if ring_size(axes) > 1 else shard


def reduce_scatter(partial: jax.Array, axes: Axes, *, dim: int, dtype: jax.typing.DTypeLike) -> jax.Array:
    """The sum over the ring of this chip's part of `dim`; what travels has the given dtype."""
    partial = partial.astype(dtype)
    return lax.psum_scatter(partial, axes, scatter_dimension=dim, tiled=True) if ring_size(axes) > 1 else partial


def shift(shard: jax.Array, axes: Axes, *, step: int = 1) -> jax.Array:
    """Each chip gets what the next one in the ring has; with step -1, what the one before has."""
    size = ring_size(axes)
    return permute(shard, axes, [((i + step) % size, i) for i in range(size)]) if size > 1 else shard


def permute(shard: jax.Array, axes: Axes, moves: Sequence[tuple[int, int]]) -> jax.Array:
    """Each destination of the (source, destination) pairs gets what its source has; the others get zeros.

    `lax.ppermute` counts chips in the order that the mesh has its axes, whatever order it is given; the pairs count
    them in the order of `axes`.
    """
    ordered = sorted(axes, key=jax.sharding.get_abstract_mesh().axis_names.index)
    numbers = np.arange(ring_size(axes)).reshape([lax.axis_size(axis) for axis in ordered])
    numbers = numbers.transpose([ordered.index(axis) for axis in axes]).ravel()
    pairs = [(int(numbers[source]), int(numbers[destination])) for source, destination in moves]
    return lax.ppermute(shard, tuple(ordered), pairs)
