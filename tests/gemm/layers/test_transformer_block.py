"""Nothing reshards between the FC layers of a transformer block, forward and backward, and it trains as a dense one.

What the compiled step may send, and nothing else:

- what the twelve products send by their closed formulas (all-gathers, reduce-scatters, permutes);
- all-reduces of the norms: features are sharded over the mesh's columns, so a mean over features is a sum over columns
  of one number a row; forward mean and mean of squares, backward two more of each norm;
- all-reduces of gradients of vectors (the norms' scales), one number a feature, over the mesh's rows;
- all-reduce of the loss, one number.

The paper leaves the norms out ("incur no communication traffic", section 3.2.1), which holds for 1D tensor parallelism
with sequence parallelism, where a chip has whole rows. Here they send 1 / features of what a product moves.
"""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxquard.gemm import matmul
from tests.gemm.collectives import direction, expected_traffic, list_collectives, traffic
from tests.gemm.meshes import compile_quickly, make_mesh, place
from tests.gemm.transformer_block import (
    BATCH,
    LENGTH,
    SHAPES,
    STATIONARY,
    WIDTH,
    block_loss,
    init_params,
    make_plan,
)
from tests.gemm.variants import Variant

ROWS = BATCH * LENGTH
TABLE_1 = {"y": ("os", "ls", "rs"), "x": ("ls", "os", "rs")}
CASES = [
    ("meshslice", 2, (4, 2)),
    ("meshslice", 2, (2, 4)),
    ("collective", 1, (4, 2)),
    ("wang", 2, (2, 4)),
    pytest.param("wang", 2, (4, 2), marks=pytest.mark.slow),
    pytest.param("summa", 4, (4, 2), marks=pytest.mark.slow),
    pytest.param("summa", 4, (2, 4), marks=pytest.mark.slow),
]


def dense(name, x, w):
    return x @ w


def data():
    draw = np.random.default_rng(1)
    x, target = (draw.normal(size=(BATCH, LENGTH, WIDTH)).astype(np.float32) for _ in range(2))
    return x, target


def make_step(multiply):
    def step(params, x, target):
        loss, grads = jax.value_and_grad(block_loss)(params, x, target, multiply)
        return loss, jax.tree.map(lambda param, grad: param - 0.5 * grad, params, grads)

    return step


@functools.cache
def compiled_step(algorithm, slices, mesh_shape):
    mesh, plan = make_mesh(mesh_shape), make_plan(algorithm, mesh_shape, slices)
    specs = {name: P("x", "y") if STATIONARY[name].value == "y" else P("y", "x") for name in SHAPES}
    params = {name: place(param, mesh, specs.get(name, P("y"))) for name, param in init_params().items()}
    x, target = (place(array, mesh, P("x", None, "y")) for array in data())

    def multiply(name, x, w):
        return matmul(x, w, mesh=mesh, plan=plan, layer=name)

    return compile_quickly(make_step(multiply), params, x, target), params, x, target


def expected_of_products(algorithm, slices, mesh_shape):
    variant = Variant(name=algorithm, algorithm=algorithm, options={"slices": slices})
    total = {}
    for name, (k, n) in SHAPES.items():
        kept = STATIONARY[name].value
        sizes = {"y": ((ROWS, k, n), (ROWS, n, k), (k, ROWS, n)), "x": ((ROWS, k, n), (ROWS, n, k), (n, ROWS, k))}[kept]
        for dataflow, mkn in zip(TABLE_1[kept], sizes, strict=True):
            moved = expected_traffic(variant, dataflow, sizes=dict(zip("MKN", mkn, strict=True)), mesh_shape=mesh_shape)
            for key, (count, sent) in moved.items():
                before = total.get(key, (0, 0))
                total[key] = before[0] + count, before[1] + sent
    return total


@pytest.mark.thin(2)
@pytest.mark.parametrize(("algorithm", "slices", "mesh_shape"), CASES)
def test_only_the_products_and_the_norms_communicate(algorithm, slices, mesh_shape):
    text = compiled_step(algorithm, slices, mesh_shape)[0].as_text()
    found = traffic(text, mesh_shape)
    of_products = {key: value for key, value in found.items() if key[0] != "all-reduce"}
    assert of_products == expected_of_products(algorithm, slices, mesh_shape)
    allowed = {
        "columns": ROWS // mesh_shape[0],  # of a norm: a number a row
        "rows": WIDTH // mesh_shape[1],  # gradient of a scale
        "both": 1,  # the loss
    }
    for collective in list_collectives(text):
        if collective.kind == "all-reduce":
            way = direction(collective.groups, mesh_shape[1])
            assert max(collective.result_bytes) <= 4 * allowed[way], (way, collective)


@pytest.mark.thin(2)
@pytest.mark.parametrize(("algorithm", "slices", "mesh_shape"), CASES)
def test_losses_equal_the_dense_ones(algorithm, slices, mesh_shape):
    step, params, x, target = compiled_step(algorithm, slices, mesh_shape)
    dense_step, dense_params = jax.jit(make_step(dense)), init_params()
    losses, dense_losses = [], []
    for _ in range(5):
        loss, params = step(params, x, target)
        dense_loss, dense_params = dense_step(dense_params, *data())
        losses.append(float(loss))
        dense_losses.append(float(dense_loss))
    np.testing.assert_allclose(losses, dense_losses, rtol=2e-6)
    assert dense_losses[-1] < 0.95 * dense_losses[0]
