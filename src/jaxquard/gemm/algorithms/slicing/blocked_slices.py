"""Blocked slicing (MeshSlice, section 3.1.2, Algorithm 2): slice s takes `block` neighbours of every `slices * block`.

Every chip takes the same ones of its shard, so an all-gather of them gives the same slice of the whole matrix, whatever
the number of chips: so A and B may be sharded over different numbers of chips and still meet.

In OS the blocks decide the order of sums, so they are those that the user asks for. In LS and RS they change no number:
there they are the widest that fit (`widest_block`), as wide ones cost fewer copies.

A slice number may be traced: in a loop, slices are taken and placed at offsets that the loop computes. A shard with one
block a slice is sliced as it is. With more, it is seen as blocks of dims (runs, slices, block), which on a TPU lays it
out anew once if the sliced dim is the minor one. A few large blocks are placed one by one, so that the compiler writes
each from the product that makes it.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

_FEW_BLOCKS = 4
_WIDE_BLOCK = 128
"""The columns of a product that fill a TPU's systolic array; v6e's has 256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedSlices:
    """The slices of a shard along `dim`, which has `size` elements; `slices * block` divides it."""

    dim: int
    size: int
    slices: int
    block: int

    def __post_init__(self) -> None:
        assert self.size % (self.slices * self.block) == 0, self

    @property
    def num_blocks(self) -> int:
        """The number of blocks of a slice."""
        return self.size // (self.slices * self.block)

    @property
    def block_widths(self) -> tuple[int, ...]:
        """The parts in which a slice is best made, if it is to be placed: its blocks, if they are few and wide."""
        return (self.block,) * self.num_blocks if self._has_few_blocks else (self.size // self.slices,)

    @property
    def _has_few_blocks(self) -> bool:
        return self.num_blocks == 1 or (self.num_blocks <= _FEW_BLOCKS and self.block >= _WIDE_BLOCK)

    def blocks(self, shard: jax.Array) -> jax.Array:
        """Returns the shard as `take` needs it: outside of a loop, so that it is laid out once."""
        if self.num_blocks == 1:
            return shard
        before, after = shard.shape[: self.dim], shard.shape[self.dim + 1 :]
        return shard.reshape(*before, self.num_blocks, self.slices, self.block, *after)

    def take(self, blocks: jax.Array, number: int | jax.Array) -> jax.Array:
        """Returns a slice of a shard, of which `blocks` are the blocks."""
        if self.slices == 1:
            return blocks
        if self.num_blocks == 1:
            return lax.dynamic_slice_in_dim(blocks, number * self.block, self.block, axis=self.dim)
        taken = lax.dynamic_index_in_dim(blocks, number, axis=self.dim + 1, keepdims=False)
        return taken.reshape(self._around(self.size // self.slices, math.prod(blocks.shape) // self.size))

    def empty(self, other_size: int, dtype: jax.typing.DTypeLike) -> jax.Array:
        """Returns a buffer without contents for `place`; the shard's other dim has `other_size` elements."""
        if self._has_few_blocks:
            return lax.empty(self._around(self.size, other_size), dtype)
        return lax.empty(self._around((self.num_blocks, self.slices, self.block), other_size), dtype)

    def place(
        self, buffer: jax.Array, part: jax.Array, number: int | jax.Array, *, start: int = 0, block: int = 0
    ) -> jax.Array:
        """Writes a part of a slice: some of its blocks, from `block` on, and of the other dim what is from `start` on.

        Args:
            buffer: from `empty`; it may be donated to the result.
            part: along `dim`, one or all of `block_widths`.
        """
        other_size = part.shape[1 - self.dim]
        if not self._has_few_blocks:
            blocks = part.reshape(self._around((self.num_blocks, 1, self.block), other_size))
            return lax.dynamic_update_slice(buffer, blocks, self._around((0, number, 0), start))
        for run in range(part.shape[self.dim] // self.block):
            piece = lax.slice_in_dim(part, run * self.block, (run + 1) * self.block, axis=self.dim)
            offset = ((block + run) * self.slices + number) * self.block
            buffer = lax.dynamic_update_slice(buffer, piece, self._around(offset, start))
        return buffer

    def join(self, buffer: jax.Array) -> jax.Array:
        """Returns the shard of a buffer in which all slices are placed."""
        return buffer.reshape(self._around(self.size, math.prod(buffer.shape) // self.size))

    def _around(self, sliced: Any, other: Any) -> tuple[Any, ...]:
        """Returns a shape or a place: the sliced dim, or what it is seen as, and the other one in their order."""
        along = sliced if isinstance(sliced, tuple) else (sliced,)
        return (*along, other) if self.dim == 0 else (other, *along)


def slices_of(shard: jax.Array, *, dim: int, slices: int, block: int) -> BlockedSlices:
    """Returns the slices of a shard along `dim`; one slice is the whole shard, whatever the block."""
    size = shard.shape[dim]
    return BlockedSlices(dim=dim, size=size, slices=slices, block=block if slices > 1 else size)


def widest_block(size: int, *, slices: int, mesh_shape: tuple[int, int]) -> int:
    """Returns the widest blocks of the slices of a dim that one matrix has sharded over rows, another over columns."""
    return size // (math.lcm(*mesh_shape) * slices)
