"""Blocked slicing is Algorithm 2 of the paper, and the same slice of the whole matrix on any number of chips."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from jaxquard.gemm.algorithms.slicing.blocked_slices import BlockedSlices, slices_of
from tests.few_examples import few_examples

counts = st.integers(1, 4)


def take_all(shard, **how):
    taken = slices_of(shard, **how)
    return [taken.take(taken.blocks(shard), number) for number in range(taken.slices)]


def take_with_numpy(shard, *, dim, slices, block, number):
    """Algorithm 2, element by element."""
    positions = [i for i in range(shard.shape[dim]) if slices == 1 or i // block % slices == number]
    return np.take(shard, positions, axis=dim)


@few_examples(6)
@given(
    slices=counts,
    block=st.sampled_from([1, 2, 3, 128]),
    repeats=st.integers(1, 6),
    other=counts,
    dim=st.sampled_from([0, 1]),
    is_traced=st.booleans(),
)
def test_slices_are_those_of_the_paper_and_join_again(slices, block, repeats, other, dim, is_traced):
    shape = [other, other]
    shape[dim] = slices * block * repeats
    shard = np.arange(np.prod(shape)).reshape(shape)
    sliced = slices_of(jnp.asarray(shard), dim=dim, slices=slices, block=block)

    @jax.jit
    def take_and_place(shard, numbers):
        numbers = numbers if is_traced else range(slices)
        buffer, blocks = sliced.empty(other, shard.dtype), sliced.blocks(shard)
        taken = [sliced.take(blocks, numbers[s]) for s in range(slices)]
        for s, part in enumerate(taken):
            buffer = sliced.place(buffer, part, numbers[s])
        return taken, sliced.join(buffer)

    taken, joined = take_and_place(shard, np.arange(slices))
    assert_array_equal(joined, shard)
    for s, part in enumerate(taken):
        assert_array_equal(part, take_with_numpy(shard, dim=dim, slices=slices, block=block, number=s))


@few_examples(6)
@given(slices=st.integers(2, 4), repeats=st.integers(1, 4), rows=st.integers(2, 5), dim=st.sampled_from([0, 1]))
def test_parts_of_a_slice_are_placed_by_block_and_row(slices, repeats, rows, dim):
    shape = [rows, rows]
    shape[dim] = slices * 128 * repeats
    shard = np.arange(np.prod(shape)).reshape(shape)
    sliced = BlockedSlices(dim=dim, size=shape[dim], slices=slices, block=128)
    assert sliced.block_widths == (128,) * repeats

    @jax.jit
    def place(shard):
        buffer = sliced.empty(rows, shard.dtype)
        for s in range(slices):
            part = sliced.take(sliced.blocks(shard), s)
            for block in range(repeats):
                one = jax.lax.slice_in_dim(part, 128 * block, 128 * (block + 1), axis=dim)
                for start, end in ((0, rows // 2), (rows // 2, rows)):
                    half = jax.lax.slice_in_dim(one, start, end, axis=1 - dim)
                    buffer = sliced.place(buffer, half, s, start=start, block=block)
        return sliced.join(buffer)

    assert_array_equal(place(shard), shard)


@pytest.mark.parametrize(
    ("repeats", "block", "widths"), [(1, 8, (8,)), (4, 128, (128,) * 4), (5, 128, (640,)), (2, 64, (128,))]
)
def test_few_wide_blocks_are_made_one_by_one(repeats, block, widths):
    assert BlockedSlices(dim=1, size=4 * block * repeats, slices=4, block=block).block_widths == widths


@few_examples(6)
@given(slices=counts, block=counts, repeats=counts, chips=st.sampled_from([1, 2, 3, 4]))
def test_the_slices_of_all_shards_are_the_slice_of_the_whole(slices, block, repeats, chips):
    """A and B, sharded over different numbers of chips, meet (section 3.1.2)."""
    whole = np.arange(slices * block * repeats * chips)[None]

    @jax.jit
    def from_shards(whole):
        shards = [take_all(shard, dim=1, slices=slices, block=block) for shard in jnp.split(whole, chips, axis=1)]
        gathered = [jnp.concatenate(parts, axis=1) for parts in zip(*shards, strict=True)]
        return gathered, take_all(whole, dim=1, slices=slices, block=block)

    for gathered, expected in zip(*from_shards(whole), strict=True):
        assert_array_equal(gathered, expected)


def test_a_slice_takes_blocks_in_turn():
    first, second = take_all(jnp.arange(8)[None], dim=1, slices=2, block=2)
    assert_array_equal(first, [[0, 1, 4, 5]])
    assert_array_equal(second, [[2, 3, 6, 7]])
