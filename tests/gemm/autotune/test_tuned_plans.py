"""Every plan that the autotuner finds can be run as it is, and says all that its price assumed."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from jaxquard.cluster import Axis, load_cluster
from jaxquard.gemm import FcLayer, GemmProblem, gpt3, layer_shardings, matmul, transformer_block
from jaxquard.gemm.algorithms.registry import ALGORITHMS, mesh_shapes
from jaxquard.gemm.cost.cost import price_product
from jaxquard.gemm.cost.products import plan_products
from jaxquard.gemm.layers.plan_file import parse_plan, plan_text
from jaxquard.gemm.layers.resolve_plan import check_layer, resolve_plan
from tests.gemm.collectives import traffic
from tests.gemm.meshes import compile_quickly, exact, make_mesh, whole_numbers
from tests.gemm.tune_by_paper import simulation_of_a_tpu, tune_by_paper

PROBLEMS = {
    "gpt3": gpt3(batch=8, num_blocks=1),
    # 36 chips: sizes with two factors of 3; few rows, so that W is the largest matrix of some layers.
    "nines": transformer_block(9216, num_rows=16 * 2304),
    "few rows": transformer_block(9216, num_rows=4608),
    "three layers": GemmProblem(
        layers=tuple(
            FcLayer(name=name, in_features=inner, out_features=outer)
            for name, inner, outer in (("up", 2304, 9216), ("across", 9216, 4608), ("down", 4608, 2304))
        ),
        num_rows=2304,
    ),
}


@pytest.mark.thin(4)
@pytest.mark.parametrize("cluster", ["tpu-v4-simulation", "h200"])
@pytest.mark.parametrize("num_chips", [1, 16, 36])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_row_is_refused(algorithm, num_chips, cluster):
    num_rows = 0
    for name, problem in PROBLEMS.items():
        if name == "gpt3" and num_chips == 36:
            continue  # its 12,288 features do not divide by 9
        tuning = tune_by_paper(problem, cluster, num_chips, algorithm, memory_limit_bytes=math.inf, keep=100)
        for row in tuning.table:
            num_rows += 1
            assert parse_plan(plan_text(row.plan)) == row.plan
            check_plan(problem, row.plan)
            assert price_again_s(problem, row.plan, load_cluster(cluster)) == pytest.approx(row.time_s, rel=1e-12)
    assert num_rows >= len(PROBLEMS) - 1


def check_plan(problem, plan):
    """Raises if a layer cannot be multiplied as planned."""
    shape = dict(zip(("rows", "columns"), plan.mesh_shape, strict=True))
    for layer in problem.layers:
        products = resolve_plan(plan, rows=("rows",), columns=("columns",), shape=shape, layer=layer.name)
        x_shape, w_shape = (problem.num_rows, layer.in_features), (layer.in_features, layer.out_features)
        check_layer(products, x_shape=x_shape, w_shape=w_shape, shape=shape)


def price_again_s(problem, plan, cluster):
    """The price of a plan by its own options alone."""
    time_s = 0.0
    for layer, products in zip(plan.layers, plan_products(problem, plan.layers), strict=True):
        for product, options in zip(products, layer.options, strict=True):
            time_s += price_product(
                cluster,
                product,
                algorithm=plan.algorithm,
                mesh_shape=plan.mesh_shape,
                options=options,
            ).time_s
    return time_s


SMALL = GemmProblem(
    layers=(
        FcLayer(name="up", in_features=64, out_features=128),
        FcLayer(name="down", in_features=128, out_features=64),
    ),
    num_rows=32,
)


def fast(name):
    """A cluster whose synchronisation is so fast that small products are sliced, too."""
    cluster = load_cluster(name)
    kinds = ("all_gather", "reduce_scatter", "permute")
    links = {kind: replace(getattr(cluster, kind), sync_s=1e-9, launch_s=1e-12) for kind in kinds}
    return replace(cluster, **links)


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("algorithm", "cluster", "mesh_shape"),
    [
        ("meshslice", "tpu-v4-simulation", (4, 2)),
        ("meshslice", "h200", (2, 4)),
        ("collective", "tpu-v4-simulation", (4, 2)),
        ("wang", "tpu-v4-simulation", (4, 2)),
        ("wang", "h200", (2, 4)),
        ("summa", "tpu-v4-simulation", (2, 2)),
        ("cannon", "tpu-v4-simulation", (2, 2)),
        ("1d_tp", "tpu-v4-simulation", (1, 8)),
        ("fsdp", "h200", (8, 1)),
    ],
)
def test_plans_run(algorithm, cluster, mesh_shape):
    """Value and both gradients of each layer; a plan goes into `matmul` as it is."""
    problem, mesh = SMALL, make_mesh(mesh_shape)
    tuning = tune_by_paper(problem, fast(cluster), math.prod(mesh_shape), algorithm, mesh_shape=mesh_shape, block=1)
    for layer in problem.layers:
        x = whole_numbers(32, layer.in_features, seed=0)
        w = whole_numbers(layer.in_features, layer.out_features, seed=1)
        dy = whole_numbers(32, layer.out_features, seed=2)

        def run(x, w, dy, name=layer.name):
            y, pull = jax.vjp(lambda x, w: matmul(x, w, mesh=mesh, plan=tuning, layer=name), x, w)
            return y, *pull(dy)

        y, dx, dw = (exact(array) for array in compile_quickly(run, x, w, dy)(x, w, dy))
        assert_array_equal(y, exact(x) @ exact(w))
        assert_array_equal(dx, exact(dy) @ exact(w).T)
        assert_array_equal(dw, exact(x).T @ exact(dy))


@pytest.mark.thin(3)
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("stationary", ["y", "x", "w"])
@pytest.mark.parametrize("ring", Axis)
def test_a_ring_runs_where_the_plan_says(ring, stationary, is_transposed):
    """In the mesh's own words, whichever of rows and columns the products of the layer exchange."""
    mesh = make_mesh((4, 2))
    problem = GemmProblem(layers=SMALL.layers[:1], num_rows=32)
    plan = tune_by_paper(problem, "tpu-v4-simulation", 8, "wang", mesh_shape=(4, 2), stationary=stationary).plan
    layer = replace(plan.layers[0], rings=(ring,) * 3, is_transposed=is_transposed, slices=(2, 2, 2))
    plan = replace(plan, layers=(layer,))
    shardings = layer_shardings(mesh=mesh, plan=plan)
    shapes = {"x": (32, 64), "w": (64, 128), "y": (32, 128)}
    args = [jax.device_put(np.ones(shape, np.float32), shardings[name]) for name, shape in shapes.items()]

    def run(x, w, dy):
        y, pull = jax.vjp(lambda x, w: matmul(x, w, mesh=mesh, plan=plan), x, w)
        return y, *pull(dy)

    found = traffic(compile_quickly(run, *args).as_text(), (4, 2))
    assert {way for kind, way in found if kind == "collective-permute"} == {ring.value}
    assert {way for kind, way in found if kind != "collective-permute"} == {"columns" if ring is Axis.ROWS else "rows"}
    chips = 4 if ring is Axis.ROWS else 2
    assert found["collective-permute", ring.value][0] == 3 * 2 * (chips - 1)
    shards = sum(
        4 * moving.num_elements / 8
        for product in plan_products(problem, plan.layers)[0]
        for moving in product.moving
        if moving.axis is ring
    )
    assert found["collective-permute", ring.value][1] == shards * (chips - 1)


def test_what_a_plan_says():
    problem = gpt3(num_blocks=1)

    def layers(algorithm, cluster="tpu-v4-simulation"):
        return tune_by_paper(problem, cluster, 256, algorithm, memory_limit_bytes=math.inf).plan.layers

    assert all(layer.split_for_overlap for layer in layers("meshslice", simulation_of_a_tpu()))
    assert not any(layer.split_for_overlap for layer in layers("meshslice"))
    assert not any(layer.split_for_overlap for layer in layers("meshslice", "h200"))
    assert not any(layer.split_for_overlap for layer in layers("collective"))
    assert all(layer.bidirectional for name in ("wang", "1d_tp", "fsdp") for layer in layers(name))
    assert not any(layer.bidirectional for name in ("cannon", "meshslice") for layer in layers(name))
    assert not any(layer.bidirectional for layer in layers("wang", "h200"))
    assert all(ring in Axis for layer in layers("wang") for ring in layer.rings)
    assert {layer.rings for layer in layers("1d_tp")} == {(None, None, None)}
    assert min(count for layer in layers("summa") for count in layer.num_packets) > 1
    assert {layer.num_packets for layer in layers("wang")} == {(1, 1, 1)}


def test_meshes_of_the_tests_exist():
    assert [bool(mesh_shapes(name, 36)) for name in ALGORITHMS] == [True] * len(ALGORITHMS)
