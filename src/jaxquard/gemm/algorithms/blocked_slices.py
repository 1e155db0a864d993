"""Blocked slicing of a shard, and its inverse (MeshSlice, section 3.1.2, Algorithm 2).

Slice s takes `block` neighbours out of every `slices * block`. Every chip takes the same ones of its shard, so what an
all-gather puts together of them is the same slice of the whole matrix, whatever the number of chips: that is what lets
A and B be cut over different numbers of chips and still meet.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def split_slices(shard: jax.Array, *, dim: int, slices: int, block: int) -> list[jax.Array]:
    """The slices of a shard along `dim`, whose size `slices * block` divides unless there is one slice."""
    if slices == 1:
        return [shard]
    before, size, after = shard.shape[:dim], shard.shape[dim], shard.shape[dim + 1 :]
    assert size % (slices * block) == 0, (shard.shape, dim, slices, block)
    blocks = shard.reshape(*before, size // (slices * block), slices, block, *after)
    sliced = (*before, size // slices, *after)
    return [lax.index_in_dim(blocks, s, axis=dim + 1, keepdims=False).reshape(sliced) for s in range(slices)]


def join_slices(parts: Sequence[jax.Array], *, dim: int, block: int) -> jax.Array:
    """The shard whose slices these are."""
    if len(parts) == 1:
        return parts[0]
    before, size, after = parts[0].shape[:dim], parts[0].shape[dim], parts[0].shape[dim + 1 :]
    blocks = [part.reshape(*before, size // block, block, *after) for part in parts]
    return jnp.stack(blocks, axis=dim + 1).reshape(*before, size * len(parts), *after)
