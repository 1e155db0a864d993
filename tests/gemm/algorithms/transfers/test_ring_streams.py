"""Streams round a ring are a reduce-scatter, on a ring that closes and on one that is folded over a line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from jaxquard.gemm.algorithms.transfers import ring_streams as module
from jaxquard.gemm.algorithms.transfers.ring_streams import folded_order, ring_streams


@pytest.mark.thin(5)
@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize("num_chips", [2, 3, 4, 8])
@pytest.mark.parametrize("num_rows", [1, 16, 17])
def test_streams_are_a_reduce_scatter(num_chips, num_rows, is_folded, monkeypatch):
    monkeypatch.setattr(module, "_is_folded", lambda: is_folded)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:num_chips]), ("x",))

    def scatter(partials):
        (partial,), done = partials, []
        streams = ring_streams(("x",), num_rows)
        assert [stream.step for stream in streams] == ([1] if num_rows == 1 else [1, -1])
        for stream in streams:
            terms, total = stream.own(partial, dim=0), None
            for turn in range(num_chips):
                part = jax.lax.dynamic_slice_in_dim(terms, stream.destinations()[turn] * 4, 4, axis=1)
                total = part if total is None else stream.send(total) + part
            done.append(total)
        return jnp.concatenate(done)[None]

    partials = jax.random.randint(jax.random.key(0), (num_chips, num_rows, 4 * num_chips), -8, 8).astype(jnp.bfloat16)
    over = jax.sharding.PartitionSpec("x")
    parts = jax.jit(jax.shard_map(scatter, mesh=mesh, in_specs=over, out_specs=over, check_vma=False))(partials)
    assert_array_equal(jnp.concatenate(list(parts), axis=1), partials.sum(0))


@pytest.mark.parametrize("num_chips", range(1, 20))
def test_a_folded_ring_goes_at_most_two_chips_far(num_chips):
    order = folded_order(num_chips)
    assert sorted(order) == list(range(num_chips))
    assert all(abs(chip - following) <= 2 for chip, following in zip(order, order[1:] + order[:1], strict=True))


@pytest.mark.parametrize(
    ("kind", "is_folded"), [("TPU v5 lite", True), ("TPU v5e", True), ("TPU v4", False), ("cpu", False)]
)
def test_the_ring_is_folded_where_the_compiler_closes_none(kind, is_folded, monkeypatch):
    device = type("Device", (), {"device_kind": kind})()
    monkeypatch.setattr(jax.sharding, "get_abstract_mesh", lambda: type("Mesh", (), {"abstract_device": device})())
    assert module._is_folded() is is_folded
