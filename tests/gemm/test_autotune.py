"""The autotuner against brute force, its choices, its errors and its texts."""

import itertools
import math
import time
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

from jaxquard.cluster import load_cluster
from jaxquard.errors import GemmError
from jaxquard.gemm.autotune import autotune
from jaxquard.gemm.autotune_dataflows import choose_dataflows
from jaxquard.gemm.autotune_models import gpt3, megatron_nlg, transformer_block
from jaxquard.gemm.autotune_slices import divisors, slice_counts
from jaxquard.gemm.cost import price_product
from jaxquard.gemm.cost_algorithms import ALGORITHMS
from jaxquard.gemm.cost_memory import kept_bytes
from jaxquard.gemm.cost_product import SizedProduct, sized_products
from jaxquard.gemm.matmul import matmul
from jaxquard.gemm.plan_text import load_plan, parse_plan, plan_text, save_plan
from jaxquard.gemm.problem import Dataflow, FcLayer, GemmPlan, GemmProblem, LayerPlan, Stationary

_DIMS = st.sampled_from([64, 96, 128, 192, 256, 512])


def _brute_force(problem, cluster, num_chips, block, limit):
    """Every mesh with every combination of slice counts of all products, priced one by one."""
    plans = choose_dataflows(problem)
    kept = kept_bytes(problem, num_chips=num_chips)
    products = [
        product
        for layer, plan in zip(problem.layers, plans, strict=True)
        for product in sized_products(
            layer, num_rows=problem.num_rows, stationary=plan.stationary, is_transposed=plan.is_transposed
        )
    ]
    best = None
    for rows in range(1, num_chips + 1):
        mesh = (rows, num_chips // rows)
        if num_chips % rows or any(product.indivisible(mesh) for product in products):
            continue
        options = [
            [s for s in range(1, p.sliced_dim + 1) if s == 1 or p.sliced_dim % (math.lcm(*mesh) * s * block) == 0]
            for p in products
        ]
        prices = [
            {s: price_product(cluster, p, algorithm="meshslice", mesh_shape=mesh, num_slices=s) for s in counts}
            for p, counts in zip(products, options, strict=True)
        ]
        for counts in itertools.product(*options):
            costs = [price[count] for price, count in zip(prices, counts, strict=True)]
            memory = kept + max(cost.buffer_bytes for cost in costs)
            if memory <= limit and (best is None or sum(c.time_s for c in costs) < best[0]):
                best = (sum(cost.time_s for cost in costs), mesh, counts)
    return best


@given(inner=_DIMS, outer=_DIMS, rows=_DIMS, chips=st.sampled_from([1, 2, 4, 6, 8]), tight=st.floats(1.0, 1.5))
def test_against_brute_force(inner, outer, rows, chips, tight):
    problem = GemmProblem(layers=(FcLayer(name="l", in_features=inner, out_features=outer),), num_rows=rows)
    cluster = load_cluster("tpu-v4")
    # Small products on a fast network, so that slicing can pay.
    cluster = replace(
        cluster,
        **{
            kind: replace(getattr(cluster, kind), sync_s=1e-9, launch_s=1e-9)
            for kind in ("all_gather", "reduce_scatter")
        },
    )
    limit = tight * kept_bytes(problem, num_chips=chips)
    expected = _brute_force(problem, cluster, chips, 8, limit)
    if expected is None:
        with pytest.raises(GemmError, match=r"nothing fits in|no mesh of"):
            autotune(problem, cluster, chips, memory_limit_bytes=limit)
        return
    tuning = autotune(problem, cluster, chips, memory_limit_bytes=limit)
    assert tuning.best.time_s == pytest.approx(expected[0], rel=1e-12)
    assert tuning.best.memory_bytes <= limit


def test_gpt3_on_256_chips():
    """Section 3.2.1 and data/tpu_v4.md: QKV and FF1 keep Y, OUT and FF2 keep X; the best mesh is 32x8."""
    tuning = autotune(gpt3())
    plan = tuning.plan
    assert plan.mesh_shape == (32, 8)
    assert [layer.stationary for layer in plan.layers] == [Stationary.Y, Stationary.X] * 2
    assert not any(layer.is_transposed for layer in plan.layers)
    assert tuning.best.utilisation == pytest.approx(0.638, abs=5e-4)
    assert [row.time_s for row in tuning.table] == sorted(row.time_s for row in tuning.table)


def test_4096_chips_in_under_2_s():
    start = time.perf_counter()
    tuning = autotune(gpt3(batch=2048), num_chips=4096)
    assert time.perf_counter() - start < 2
    assert tuning.plan.mesh_shape == (256, 16)


def test_transposition_heuristic():
    """W is largest in the middle: its plain form wants X transposed, so the transposed one is used from there on."""
    layers = [FcLayer(name=str(i), in_features=i_f, out_features=o_f) for i, (i_f, o_f) in enumerate(
        [(8, 64), (4096, 4096), (8, 64), (4096, 4096), (64, 8)]
    )]  # fmt: skip
    plans = choose_dataflows(GemmProblem(layers=tuple(layers), num_rows=512))
    kept = [(plan.stationary.name, plan.is_transposed) for plan in plans]
    assert kept == [("Y", False), ("W", True), ("Y", True), ("W", False), ("X", False)]


def test_1d_baselines_move_what_they_should():
    one, fsdp = (choose_dataflows(gpt3(), algorithm=name) for name in ("1d_tp", "fsdp"))
    assert [(plan.stationary, plan.is_transposed) for plan in one] == [
        (Stationary.W, transposed) for transposed in (False, True, False, True)
    ]
    assert [plan.stationary for plan in fsdp] == [Stationary.Y, Stationary.X] * 2


def test_rivals_are_unrolled_to_meshslices_slices():
    tuned = autotune(gpt3(num_blocks=1)).plan
    for algorithm in ("wang", "summa"):
        plan = autotune(gpt3(num_blocks=1), algorithm=algorithm).plan
        for layer in plan.layers:
            wanted = tuned.layer(layer.name).slices
            assert all(count <= most for count, most in zip(layer.slices, wanted, strict=True))
    assert {layer.slices for layer in autotune(gpt3(num_blocks=1), algorithm="collective").plan.layers} == {(1, 1, 1)}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_meshslice_beats_the_others_of_the_paper(algorithm):
    best = autotune(gpt3(num_blocks=1), memory_limit_bytes=float("inf")).best
    other = autotune(gpt3(num_blocks=1), algorithm=algorithm, memory_limit_bytes=float("inf")).best
    assert other.utilisation <= best.utilisation


def test_a_gpu_stops_slicing_when_it_costs_more_than_it_hides():
    """Behind links so fast that there is nothing to hide a sum is not sliced; behind slow ones it is."""
    h200 = load_cluster("h200")

    def forward_slices(bandwidth, sync_s):
        links = {
            kind: replace(
                getattr(h200, kind),
                row_bandwidth_bytes_per_s=bandwidth,
                column_bandwidth_bytes_per_s=bandwidth,
                sync_s=sync_s,
                launch_s=sync_s,
            )
            for kind in ("all_gather", "reduce_scatter", "permute")
        }
        problem = transformer_block(8192, num_rows=65536)
        plan = autotune(problem, replace(h200, **links), 8, mesh_shape=(4, 2)).plan
        assert plan.layer("ff1").stationary is Stationary.Y
        return plan.layer("ff1").slices[0]

    assert forward_slices(1e14, 0.0) == 1
    assert forward_slices(1e11, 3e-6) > 1


def test_memory_error_says_the_least():
    with pytest.raises(
        GemmError, match=r"nothing fits in 34.36 GB of each of 256 chips of tpu-v4: the least is (.*) GB"
    ):
        autotune(megatron_nlg())
    assert autotune(megatron_nlg(), recompute=True).best.memory_bytes < 34.36e9
    try:
        autotune(gpt3(num_blocks=1), memory_limit_bytes=1)
    except GemmError as error:
        least = float(str(error).split("the least is ")[1].split(" GB")[0]) * 1e9
    assert autotune(gpt3(num_blocks=1), memory_limit_bytes=least * 1.02).best.memory_bytes <= least * 1.02
    with pytest.raises(GemmError):
        autotune(gpt3(num_blocks=1), memory_limit_bytes=least * 0.98)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_chips": 385}, r"no mesh of 385 chips divides .*1x385: in layer qkv, N = 36864 does not divide by 385"),
        ({"num_chips": 8192}, r"num_chips should be from 1 to the 4096 of tpu-v4, found 8192"),
        ({"algorithm": "cannon", "num_chips": 8}, r"cannon needs a square mesh, which 8 chips cannot give"),
        (
            {"algorithm": "fsdp", "mesh_shape": (16, 16)},
            r"fsdp needs a mesh of one column, which the mesh 16x16 cannot",
        ),
        ({"mesh_shape": (4, 4)}, r"the mesh 4x4 has 16 chips, but num_chips is 256"),
        ({"algorithm": "strassen"}, r"'strassen' is unknown; the algorithms are meshslice, "),
    ],
)
def test_errors(options, message):
    with pytest.raises(GemmError, match=message):
        autotune(gpt3(), **options)


def test_table_text():
    tuning = autotune(gpt3(num_blocks=1), keep=2)
    assert str(tuning).splitlines() == [
        "meshslice on 256 chips of tpu-v4: the best 2 of 9 meshes",
        "qkv keeps Y, out keeps X, ff1 keeps Y, ff2 keeps X",
        "mesh    qkv    out    ff1    ff2     time  utilisation  exposed  memory",
        "32x8  6,6,6  4,3,4  8,8,8  8,8,8  64.1 ms        63.8%    30.3%  0.5 GB",
        "64x4  3,3,3  2,2,2  3,4,4  4,3,4  83.8 ms        48.9%    46.6%  0.7 GB",
    ]


@given(dim=st.integers(1, 400), rows=st.sampled_from([1, 2, 4]), columns=st.sampled_from([1, 2, 4]))
def test_slice_counts(dim, rows, columns):
    product = SizedProduct(dataflow=Dataflow.OS, m=64, k=dim * rows * columns, n=64)
    counts = slice_counts(product, mesh_shape=(rows, columns), block=4)
    assert counts == tuple(
        s for s in range(1, dim * 4 + 1)
        if s == 1 or (dim * rows % (4 * s) == 0 and dim * columns % (4 * s) == 0)
    )  # fmt: skip


def test_divisors():
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)


_PLANS = st.builds(
    GemmPlan,
    algorithm=st.sampled_from(ALGORITHMS),
    mesh_shape=st.tuples(st.integers(1, 99), st.integers(1, 99)),
    layers=st.lists(
        st.builds(
            LayerPlan, name=st.text(), stationary=st.sampled_from(Stationary), is_transposed=st.booleans(),
            slices=st.tuples(*[st.integers(1, 99)] * 3), block=st.integers(1, 99),
        )
    ).map(tuple),
)  # fmt: skip


@given(plan=_PLANS)
def test_plans_come_back(plan):
    assert parse_plan(plan_text(plan)) == plan


def test_plans_as_files(tmp_path):
    plan = autotune(gpt3()).plan
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{", "", "the plan text is not JSON"),
        ('"jaxquard.gemm_plan"', '"other"', "expected the schema 'jaxquard.gemm_plan'"),
        ('"version": 1', '"version": 2', "has version 2 of the schema, this jaxquard reads 1. Tune again."),
        ('"meshslice"', '"wong"', "has the algorithm 'wong'; the algorithms are meshslice, "),
        ('"stationary": "y"', '"stationary": "z"', "layer 0: stationary should be one of y, x, w, found 'z'"),
        ('"is_transposed": false', '"is_transposed": 0', "layer 0: is_transposed should be true or false, found 0"),
        ('"block": 8', '"block": 0', "layer 0: block should be 1 whole numbers above 0"),
        ('"name": "qkv",', "", "layer 0 lacks 'name'. Save the plan again"),
    ],
)
def test_plan_errors(old, new, message):
    text = plan_text(autotune(gpt3()).plan)
    assert old in text
    with pytest.raises(GemmError, match=message):
        parse_plan(text.replace(old, new, 1))


@pytest.mark.parametrize("algorithm", ["meshslice", "collective", "cannon", "summa"])
def test_what_was_tuned_runs(algorithm):
    """A tuning goes into `matmul` as it is, whatever the algorithm."""
    problem = GemmProblem(layers=(FcLayer(name="a", in_features=64, out_features=128),), num_rows=64)
    tuning = autotune(problem, cluster="tpu-v4", num_chips=4, algorithm=algorithm, mesh_shape=(2, 2), block=2)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("rows", "columns"))
    x, w = np.ones((64, 64), np.float32), np.ones((64, 128), np.float32)
    np.testing.assert_array_equal(matmul(x, w, mesh=mesh, plan=tuning, layer="a"), x @ w)
