"""Blocked slicing is Algorithm 2 of the paper, and the same slice of the whole matrix on any number of chips."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from jaxquard.gemm.algorithms.meshslice import join_slices, split_slices

counts = st.integers(1, 4)


@given(slices=counts, block=counts, repeats=counts, other=counts, dim=st.sampled_from([0, 1]))
def test_join_undoes_slicing(slices, block, repeats, other, dim):
    shape = [other, other]
    shape[dim] = slices * block * repeats
    shard = np.arange(np.prod(shape)).reshape(shape)

    @jax.jit
    def slice_and_join(shard):
        parts = split_slices(shard, dim=dim, slices=slices, block=block)
        assert len(parts) == slices
        return join_slices(parts, dim=dim, block=block)

    assert_array_equal(slice_and_join(shard), shard)


@given(slices=counts, block=counts, repeats=counts, chips=st.sampled_from([1, 2, 3, 4]))
def test_the_slices_of_all_shards_are_the_slice_of_the_whole(slices, block, repeats, chips):
    """A and B, sharded over different numbers of chips, meet (section 3.1.2)."""
    whole = np.arange(slices * block * repeats * chips)[None]

    @jax.jit
    def from_shards(whole):
        shards = [split_slices(shard, dim=1, slices=slices, block=block) for shard in jnp.split(whole, chips, axis=1)]
        gathered = [jnp.concatenate(parts, axis=1) for parts in zip(*shards, strict=True)]
        return gathered, split_slices(whole, dim=1, slices=slices, block=block)

    for gathered, expected in zip(*from_shards(whole), strict=True):
        assert_array_equal(gathered, expected)


def test_a_slice_takes_blocks_in_turn():
    first, second = split_slices(jnp.arange(8)[None], dim=1, slices=2, block=2)
    assert_array_equal(first, [[0, 1, 4, 5]])
    assert_array_equal(second, [[2, 3, 6, 7]])
