"""Both ways round a ring: each step sends one half of a shard to either neighbour."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_array_equal

from jaxquard.gemm import multiply
from jaxquard.gemm.algorithms.transfers.rings import interleave, streams
from tests.gemm.collectives import list_collectives
from tests.gemm.meshes import compile_quickly, exact, make_mesh, whole_numbers


@pytest.mark.thin(2)
@pytest.mark.parametrize("dataflow", ["os", "ls", "rs"])
def test_halves_go_to_either_neighbour(dataflow):
    lhs, rhs = whole_numbers(32, 64, seed=0), whole_numbers(64, 96, seed=1)
    how = {"mesh": make_mesh((1, 8)), "algorithm": "wang", "dataflow": dataflow, "ring": "columns"}
    sizes = {}
    for bidirectional in (False, True):
        text = compile_quickly(
            lambda lhs, rhs, bidirectional=bidirectional: multiply(lhs, rhs, bidirectional=bidirectional, **how),
            lhs,
            rhs,
        ).as_text()
        for permute in (one for one in list_collectives(text) if one.kind == "collective-permute"):
            (step,) = {(source - destination) % 8 for source, destination in permute.groups}
            sizes.setdefault((bidirectional, step), []).append(sum(permute.result_bytes))
    assert {key: len(found) for key, found in sizes.items()} == {(False, 1): 7, (True, 1): 7, (True, 7): 7}
    assert sum(sizes[True, 1]) == sum(sizes[True, 7]) == sum(sizes[False, 1]) / 2


@pytest.mark.thin(3)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("ring", ["rows", "columns"])
@pytest.mark.parametrize("dataflow", ["os", "ls"])
def test_odd_shards(width, ring, dataflow):
    """Halves of a shard of 3 are 1 and 2; of a shard of 1 there are none."""
    size = {"os": (4, 4 * width, 2), "ls": (4, 2, 4 * width)}[dataflow]
    lhs, rhs = whole_numbers(*size[:2], seed=0), whole_numbers(*size[1:], seed=1)
    how = {"mesh": make_mesh((4, 2)), "algorithm": "wang", "dataflow": dataflow, "ring": ring, "bidirectional": True}
    found = compile_quickly(lambda lhs, rhs: multiply(lhs, rhs, **how), lhs, rhs)(lhs, rhs)
    assert_array_equal(exact(found), exact(lhs) @ exact(rhs))


def test_streams_bring_the_shards_of_all_chips_in_order():
    """The pieces that pass by in all turns, in order, are the all-gather."""

    def body(shard):
        ways = streams(("x",), 5, bidirectional=True)
        seen = []
        for way in ways:
            pieces = [way.own(shard, dim=0)]
            for _ in range(7):
                pieces.append(way.shift(pieces[-1]))
            seen.append(way.in_order(pieces, dim=0))
        return interleave(seen, 8, dim=0)[None]

    mapped = jax.shard_map(body, mesh=make_mesh((8, 1)), in_specs=P("x"), out_specs=P("x"), check_vma=False)
    found = jax.jit(mapped)(jnp.arange(40))
    assert_array_equal(found, jnp.broadcast_to(jnp.arange(40), (8, 40)))
