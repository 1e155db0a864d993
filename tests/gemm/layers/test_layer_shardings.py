"""The shardings of a layer's matrices, by what stays put: Table 1 of the paper, transposed ones the other way."""

import pytest
from jax.sharding import PartitionSpec as P

from jaxquard.gemm import layer_shardings
from tests.gemm.meshes import make_mesh

MESH = (4, 2)


def specs(**how):
    found = layer_shardings(mesh=make_mesh(MESH), num_x_dims=3, **how)
    return found["x"].spec, found["w"].spec, found["y"].spec


@pytest.mark.parametrize(
    ("stationary", "x", "w", "y"),
    [("y", "xy", "xy", "xy"), ("x", "xy", "yx", "xy"), ("w", "yx", "xy", "xy")],
)
def test_two_dimensional(stationary, x, w, y):
    assert specs(stationary=stationary) == (P(x[0], None, x[1]), P(*w), P(y[0], None, y[1]))
    x, w, y = x[::-1], w[::-1], y[::-1]
    assert specs(stationary=stationary, is_transposed=True) == (P(x[0], None, x[1]), P(*w), P(y[0], None, y[1]))


def test_fsdp_shards_the_batch_and_the_weight():
    every = ("x", "y")
    assert specs(algorithm="fsdp", stationary="y") == (P(every, None, None), P(every, None), P(every, None, None))


def test_1d_tensor_parallelism_has_whole_rows_between_its_pairs_of_layers():
    """Sequence parallelism: x is sharded by rows, the first layer's y and w by columns; and back in the second."""
    every = ("x", "y")
    first = specs(algorithm="1d_tp", stationary="w")
    second = specs(algorithm="1d_tp", stationary="w", is_transposed=True)
    assert first == (P(every, None, None), P(None, every), P(None, None, every))
    assert second == (P(None, None, every), P(every, None), P(every, None, None))
