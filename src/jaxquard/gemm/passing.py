"""Shards that go round a ring past every chip: all one way, or one half of each each way (Wang's ring).

With both ways each step sends half of a shard over either direction of a link. A chip is passed by the half of number
i + t in turn t one way, and by the other half of number i - t the other way, so that after P turns it has seen all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.gemm.product import Axes
from jaxquard.gemm.rings import ring_index, ring_size, shift


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What of each shard goes round one way: `width` of it, from `start` on.

    Attributes:
        axes: of the ring.
        step: 1: a chip gets what the next one has; -1: what the one before has.
    """

    axes: Axes
    step: int
    start: int
    width: int

    def shift(self, piece: jax.Array) -> jax.Array:
        """A piece goes on by one chip."""
        return shift(piece, self.axes, step=self.step)

    def own(self, shard: jax.Array, *, dim: int) -> jax.Array:
        """The piece of a shard that this stream takes along."""
        return lax.slice_in_dim(shard, self.start, self.start + self.width, axis=dim)

    def piece(self, matrix: jax.Array, places: int, *, dim: int) -> jax.Array:
        """Of a matrix of all shards, the piece of the chip that is so many places on along the stream."""
        chips = ring_size(self.axes)
        chip = (ring_index(self.axes) + self.step * places) % chips
        return lax.dynamic_slice_in_dim(matrix, chip * (matrix.shape[dim] // chips) + self.start, self.width, axis=dim)

    def in_order(self, pieces: Sequence[jax.Array], *, dim: int) -> jax.Array:
        """The pieces as they passed by, turn after turn, in the order of the chips that they came from."""
        ordered = pieces if self.step > 0 else pieces[::-1]
        # One way the first of them is this chip's own, the other way the last.
        first = ring_index(self.axes) + (self.step < 0)
        return jnp.roll(jnp.concatenate(ordered, axis=dim), first * self.width, axis=dim)


def streams(axes: Axes, width: int, *, both_ways: bool) -> tuple[Stream, ...]:
    """Those of shards of a width along the dim that is cut over the ring; a width of 1 cannot be halved."""
    if not both_ways or width < 2:
        return (Stream(axes=axes, step=1, start=0, width=width),)
    half = width // 2
    return (
        Stream(axes=axes, step=1, start=0, width=half),
        Stream(axes=axes, step=-1, start=half, width=width - half),
    )


def interleave(parts: Sequence[jax.Array], chips: int, *, dim: int) -> jax.Array:
    """Whole shards, chip after chip, of what each stream has brought in the order of the chips."""
    if len(parts) == 1:
        return parts[0]
    before, after = parts[0].shape[:dim], parts[0].shape[dim + 1 :]
    by_chip = [part.reshape(*before, chips, part.shape[dim] // chips, *after) for part in parts]
    return jnp.concatenate(by_chip, axis=dim + 1).reshape(*before, -1, *after)
