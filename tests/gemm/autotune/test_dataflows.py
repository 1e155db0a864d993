"""The stationary matrix of each layer; nothing reshards between layers, at residual sums or between blocks."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from jaxquard.cluster import Axis
from jaxquard.gemm import FcLayer, GemmProblem, Stationary, layer_shardings, matmul
from jaxquard.gemm.algorithms.registry import ALGORITHMS
from jaxquard.gemm.autotune.dataflows import choose_dataflows, residual_parts
from jaxquard.gemm.cost.products import plan_products
from jaxquard.gemm.layers.resolve_plan import resolve_plan
from tests.gemm.collectives import traffic
from tests.gemm.meshes import compile_quickly, make_mesh
from tests.gemm.tune_by_paper import tune_by_paper

MESHES = {"cannon": (2, 2), "1d_tp": (1, 8), "fsdp": (8, 1)}


def chain(*widths, ends=()):
    """Layers from width to width; `ends` are the numbers of those whose output is added to what came before."""
    return tuple(
        FcLayer(name=f"fc{number}", in_features=inner, out_features=outer, ends_residual=number in ends)
        for number, (inner, outer) in enumerate(itertools.pairwise(widths))
    )


# Few rows, so that W is the largest matrix of an odd number of layers.
BLOCKS = {
    "two": chain(64, 128, 64),
    "three": chain(64, 128, 128, 64),
    "residuals": chain(64, 64, 64, 128, 64, ends=(0, 1)),
    "narrow first": chain(64, 32, 64),
}


QUICK = "meshslice", "cannon"


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    ("block", "algorithm"),
    [
        *(
            pytest.param("three", algorithm, marks=() if algorithm in QUICK else pytest.mark.slow)
            for algorithm in ALGORITHMS
            if algorithm != "summa"
        ),
        ("two", "meshslice"),
        ("residuals", "meshslice"),
        pytest.param("residuals", "1d_tp", marks=pytest.mark.slow),
        ("narrow first", "1d_tp"),
    ],
)
def test_nothing_reshards(block, algorithm):
    """Two blocks with their residual sums send, forward and backward, what their layers send one by one."""
    layers, mesh_shape = BLOCKS[block], MESHES.get(algorithm, (4, 2))
    mesh, problem = make_mesh(mesh_shape), GemmProblem(layers=layers, num_rows=32, num_blocks=2)
    plan = tune_by_paper(problem, "tpu-v4-simulation", int(np.prod(mesh_shape)), algorithm, mesh_shape=mesh_shape).plan
    places = [layer_shardings(mesh=mesh, plan=plan, layer=layer.name) for layer in layers]

    def multiply(x, w, layer):
        return matmul(x, w, mesh=mesh, plan=plan, layer=layer.name)

    def blocks(x, weights, multiply=multiply):
        for _ in range(2):
            before = x
            for layer, w in zip(layers, weights, strict=True):
                x = multiply(x, w, layer)
                if layer.ends_residual:
                    x = before = before + x
            x = x if layers[-1].ends_residual else before + x
        return x

    def step(x, weights, dy, blocks=blocks):
        y, pull = jax.vjp(blocks, x, weights)
        return y, *pull(dy)

    draw = np.random.default_rng(0)
    x, dy = (draw.normal(size=(32, 64)).astype(np.float32) for _ in range(2))
    weights = [draw.normal(size=(one.in_features, one.out_features)).astype(np.float32) / 16 for one in layers]
    placed_w = [jax.device_put(w, place["w"]) for w, place in zip(weights, places, strict=True)]
    placed = jax.device_put(x, places[0]["x"]), placed_w, jax.device_put(dy, places[-1]["y"])
    compiled = compile_quickly(step, *placed)
    assert traffic(compiled.as_text(), mesh_shape) == one_by_one(layers, placed_w, places, multiply, mesh_shape)
    expected = step(x, weights, dy, blocks=lambda x, weights: blocks(x, weights, lambda x, w, layer: x @ w))
    jax.tree.map(lambda one, other: assert_allclose(one, other, rtol=2e-4, atol=2e-4), compiled(*placed), expected)


def one_by_one(layers, weights, places, multiply, mesh_shape):
    """The transfers of two blocks of the layers if each is its own program."""
    total = {}
    for layer, w, place in zip(layers, weights, places, strict=True):
        x, dy = (
            jax.device_put(np.ones((32, size), np.float32), place[name])
            for name, size in (("x", layer.in_features), ("y", layer.out_features))
        )

        def step(x, w, dy, layer=layer):
            y, pull = jax.vjp(lambda x, w: multiply(x, w, layer), x, w)
            return y, *pull(dy)

        for key, (count, sent) in traffic(compile_quickly(step, x, w, dy).as_text(), mesh_shape).items():
            before = total.get(key, (0, 0))
            total[key] = before[0] + 2 * count, before[1] + 2 * sent
    return total


WIDTHS = st.lists(st.sampled_from([64, 128, 256, 512]), min_size=2, max_size=6)


@given(
    widths=WIDTHS,
    ends=st.sets(st.integers(0, 4)),
    num_rows=st.sampled_from([64, 256, 1024]),
    algorithm=st.sampled_from(list(ALGORITHMS)),
)
def test_each_layer_takes_what_the_one_before_gives(widths, ends, num_rows, algorithm):
    """And each part up to a residual sum gives it as it took it; for any widths."""
    layers = chain(*widths, ends=ends)
    plans = choose_dataflows(GemmProblem(layers=layers, num_rows=num_rows), algorithm=algorithm)
    shape = {"rows": 2, "columns": 2}
    products = [
        resolve_plan(plan, rows=("rows",), columns=("columns",), shape=shape, algorithm=algorithm) for plan in plans
    ]
    for one, following in itertools.pairwise(products):
        assert one.y_spec(2) == following.x_spec(2)
    position = 0
    for part in residual_parts(layers):
        assert products[position].x_spec(2) == products[position + len(part) - 1].y_spec(2)
        position += len(part)


@given(widths=WIDTHS, num_rows=st.sampled_from([64, 96, 256, 1024]))
def test_one_layer_at_most_gives_way(widths, num_rows):
    """By brute force: of all choices with an even number of W the one that keeps most elements in their place."""
    layers = chain(*widths)
    sizes = [
        {
            Stationary.X: num_rows * layer.in_features,
            Stationary.Y: num_rows * layer.out_features,
            Stationary.W: layer.in_features * layer.out_features,
        }
        for layer in layers
    ]
    best = {False: 0, True: -1}  # most elements kept, by whether the number of W is odd
    for size in sizes:
        best = {
            is_odd: max(
                best[is_odd] + max(size[Stationary.X], size[Stationary.Y]) if best[is_odd] >= 0 else -1,
                best[not is_odd] + size[Stationary.W] if best[not is_odd] >= 0 else -1,
            )
            for is_odd in (False, True)
        }
    plans = choose_dataflows(GemmProblem(layers=layers, num_rows=num_rows))
    kept = sum(size[plan.stationary] for size, plan in zip(sizes, plans, strict=True))
    assert kept == best[False]


def test_1d_tensor_parallelism_keeps_w():
    """On one row of chips W is sharded over all of them and does not move, whatever a plan calls stationary."""
    how = {"rows": ("r",), "columns": ("c",), "shape": {"r": 1, "c": 8}, "algorithm": "1d_tp"}
    for layers in BLOCKS.values():
        problem = GemmProblem(layers=layers, num_rows=32)
        plans = choose_dataflows(problem, algorithm="1d_tp")
        for layer, plan, products in zip(layers, plans, plan_products(problem, plans), strict=True):
            assert set(resolve_plan(plan, **how).w_spec) == {("r", "c"), None}
            along = {m.num_elements for product in products for m in product.moving if m.axis is Axis.COLUMNS}
            assert along <= {32 * layer.in_features, 32 * layer.out_features}
