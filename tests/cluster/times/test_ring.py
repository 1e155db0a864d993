"""The linear cost of ring collectives, on a torus and over a switch."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.cluster import Axis, Collective, load_cluster, ring_time
from jaxquard.cluster.times.ring import is_between_nodes, shares_port

_TPU, _GPU = load_cluster("tpu-v4"), load_cluster("h200")


def test_formula():
    time = ring_time(_TPU, Collective.ALL_GATHER, axis=Axis.ROWS, mesh_shape=(32, 8), shard_bytes=6e6)
    assert (time.launch_s, time.sync_s, time.transfer_s) == pytest.approx((100e-6, 31 * 6e-6, 31 * 1e-4))


def test_launches_of_a_chain():
    """Each permute has one, unless the constants are of chains; an all-gather has one for all its steps."""
    of_chains = replace(_TPU, network=replace(_TPU.network, launches_each_permute=False))
    how = {"axis": Axis.ROWS, "mesh_shape": (8, 4), "shard_bytes": 38.8e3, "num_steps": 5}
    for cluster, kind, launches in (
        (_TPU, Collective.PERMUTE, 5),
        (of_chains, Collective.PERMUTE, 1),
        (_TPU, Collective.ALL_GATHER, 1),
    ):
        time = ring_time(cluster, kind, **how)
        assert (time.launch_s, time.sync_s) == pytest.approx((launches * 100e-6, 5 * 6e-6))


def test_rows_and_columns_differ():
    main = load_cluster("tpu-v4-main")
    row, column = (
        ring_time(main, Collective.ALL_GATHER, axis=axis, mesh_shape=(4, 4), shard_bytes=1e9).transfer_s
        for axis in (Axis.ROWS, Axis.COLUMNS)
    )
    assert row / column == pytest.approx(79.751 / 27.472)


def test_both_ways_halve_a_permute():
    one_way = replace(_TPU, network=replace(_TPU.network, is_bidirectional=False))
    for kind, bidirectional, ratio in (
        (Collective.PERMUTE, True, 2),
        (Collective.PERMUTE, False, 1),
        (Collective.ALL_GATHER, True, 1),
    ):
        how = {"axis": Axis.ROWS, "mesh_shape": (4, 4), "shard_bytes": 1e9, "bidirectional": bidirectional}
        times = [ring_time(cluster, kind, **how).transfer_s for cluster in (one_way, _TPU)]
        assert times[0] / times[1] == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("mesh", "rows_leave", "columns_leave"),
    [
        ((2, 4), False, False),
        ((8, 8), True, False),
        ((4, 16), True, True),
        ((1, 8), False, False),
        ((16, 1), True, False),
        ((1, 6), False, False),
        ((2, 3), False, False),
        ((3, 3), True, True),
    ],
)
def test_nodes(mesh, rows_leave, columns_leave):
    assert is_between_nodes(_GPU, axis=Axis.ROWS, mesh_shape=mesh) is rows_leave
    assert is_between_nodes(_GPU, axis=Axis.COLUMNS, mesh_shape=mesh) is columns_leave
    assert shares_port(_GPU, mesh) is (rows_leave == columns_leave)
    assert not shares_port(_TPU, mesh)
    if rows_leave:
        time = ring_time(_GPU, Collective.ALL_GATHER, axis=Axis.ROWS, mesh_shape=mesh, shard_bytes=50e9)
        assert time.transfer_s == pytest.approx(mesh[0] - 1)


@given(
    kind=st.sampled_from(Collective), axis=st.sampled_from(Axis), side=st.integers(1, 64), size=st.floats(0, 1e9),
    more=st.floats(0, 1e9),
)  # fmt: skip
def test_more_bytes_and_more_chips_take_longer(kind, axis, side, size, more):
    def time_s(side, size):
        return ring_time(_TPU, kind, axis=axis, mesh_shape=(side, side), shard_bytes=size).time_s

    assert time_s(side, size) <= time_s(side, size + more)
    assert time_s(side, size) < time_s(side + 1, size)
    assert time_s(1, size) == 0
