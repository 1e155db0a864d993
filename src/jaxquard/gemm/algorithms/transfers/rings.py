"""Transfers along the rows or columns of a mesh, inside `shard_map`: collectives, permutes, and streams round a ring.

`axes` are the mesh axes that make a ring, the first one varying slowest; a ring of one chip moves nothing and gives no
collective at all.

Transfers have the dtype of the matrices, sums included: a chip adds in float32, and rounds what it sends to bf16 if the
matrices are bf16. So every transfer has the bytes that the paper and the cost model count (2 an element), as in
Megatron; a sum over P chips is rounded at most P times.

A `Stream` takes shards round a ring past every chip (Wang's ring): all one way, or one half of each each way. Then each
step sends half of a shard over either direction of a link. Chip i sees the half of shard i + t in turn t one way, and
the other half of shard i - t the other way, so that after P turns it has seen all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxquard.gemm.algorithms.products.product import Axes


def axes_size(axes: Axes) -> int:
    """Returns the number of chips of the ring."""
    return math.prod(lax.axis_size(axis) for axis in axes)


def ring_index(axes: Axes) -> jax.Array | int:
    """Returns the number of this chip in the ring."""
    return lax.axis_index(axes) if axes else 0


def all_gather(shard: jax.Array, axes: Axes, *, dim: int) -> jax.Array:
    """Gathers the shards of all chips of the ring, side by side along `dim`."""
    return lax.all_gather(shard, axes, axis=dim, tiled=True) if axes_size(axes) > 1 else shard


def reduce_scatter(partial: jax.Array, axes: Axes, *, dim: int, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Sums this chip's part of `dim` over the ring; transfers have the given dtype."""
    partial = partial.astype(dtype)
    return lax.psum_scatter(partial, axes, scatter_dimension=dim, tiled=True) if axes_size(axes) > 1 else partial


def shift(shard: jax.Array, axes: Axes, *, step: int = 1) -> jax.Array:
    """Gives each chip the shard of the next one in the ring; with step -1, of the one before."""
    size = axes_size(axes)
    return permute(shard, axes, [((i + step) % size, i) for i in range(size)]) if size > 1 else shard


def permute(shard: jax.Array, axes: Axes, pairs: Sequence[tuple[int, int]]) -> jax.Array:
    """Gives each destination of the (source, destination) pairs the shard of its source; the others get zeros.

    `lax.ppermute` counts chips in the order that the mesh has its axes, whatever order it is given; the pairs count
    them in the order of `axes`.
    """
    ordered = sorted(axes, key=jax.sharding.get_abstract_mesh().axis_names.index)
    numbers = np.arange(axes_size(axes)).reshape([lax.axis_size(axis) for axis in ordered])
    numbers = numbers.transpose([ordered.index(axis) for axis in axes]).ravel()
    in_mesh_order = [(int(numbers[source]), int(numbers[destination])) for source, destination in pairs]
    return lax.ppermute(shard, tuple(ordered), in_mesh_order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The part of each shard that goes round one way: `width` of it, from `start` on.

    Attributes:
        axes: of the ring.
        step: 1: a chip receives from the next one; -1: from the one before.
    """

    axes: Axes
    step: int
    start: int
    width: int

    def shift(self, piece: jax.Array) -> jax.Array:
        """Sends a piece on by one chip."""
        return shift(piece, self.axes, step=self.step)

    def own(self, shard: jax.Array, *, dim: int) -> jax.Array:
        """Returns the piece of a shard that this stream takes along."""
        return lax.slice_in_dim(shard, self.start, self.start + self.width, axis=dim)

    def piece(self, matrix: jax.Array, places: int, *, dim: int) -> jax.Array:
        """Returns, of a matrix of all shards, the piece of the chip that is so many places on along the stream."""
        chips = axes_size(self.axes)
        chip = (ring_index(self.axes) + self.step * places) % chips
        return lax.dynamic_slice_in_dim(matrix, chip * (matrix.shape[dim] // chips) + self.start, self.width, axis=dim)

    def in_order(self, pieces: Sequence[jax.Array], *, dim: int) -> jax.Array:
        """Orders the pieces that passed by, turn after turn, by the chips that they came from."""
        ordered = pieces if self.step > 0 else pieces[::-1]
        # One way the first of them is this chip's own, the other way the last.
        first = ring_index(self.axes) + (self.step < 0)
        return jnp.roll(jnp.concatenate(ordered, axis=dim), first * self.width, axis=dim)


def streams(axes: Axes, width: int, *, bidirectional: bool) -> tuple[Stream, ...]:
    """Returns the streams of shards of a width along the dim that is sharded over the ring; 1 cannot be halved."""
    if not bidirectional or width < 2:
        return (Stream(axes=axes, step=1, start=0, width=width),)
    half = width // 2
    return (
        Stream(axes=axes, step=1, start=0, width=half),
        Stream(axes=axes, step=-1, start=half, width=width - half),
    )


def interleave(parts: Sequence[jax.Array], chips: int, *, dim: int) -> jax.Array:
    """Joins what each stream has brought, in the order of the chips, to whole shards."""
    if len(parts) == 1:
        return parts[0]
    before, after = parts[0].shape[:dim], parts[0].shape[dim + 1 :]
    by_chip = [part.reshape(*before, chips, part.shape[dim] // chips, *after) for part in parts]
    return jnp.concatenate(by_chip, axis=dim + 1).reshape(*before, -1, *after)
