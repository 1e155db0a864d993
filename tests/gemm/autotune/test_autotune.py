"""The autotuner against brute force, its choices, its errors and its table."""

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

from jaxquard.cluster import Axis, load_cluster
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.products.layer_products import sized_products
from jaxquard.gemm.algorithms.registry import ALGORITHMS
from jaxquard.gemm.autotune.dataflows import choose_dataflows
from jaxquard.gemm.autotune.meshes import indivisible
from jaxquard.gemm.autotune.models import gpt3, megatron_nlg, transformer_block
from jaxquard.gemm.autotune.slices import divisors, slice_counts
from jaxquard.gemm.cost.cost import price_product
from jaxquard.gemm.cost.products import kept_bytes
from jaxquard.gemm.layers.matmul import matmul
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow, FcLayer, GemmProblem, LayerPlan, Stationary
from tests.gemm.sized_products import sized_product
from tests.gemm.tune_by_paper import tune_by_paper
from tests.machine_pace import machine_pace

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
        if num_chips % rows or not all(product.is_divided_by(mesh) for product in products):
            continue
        options = [
            [s for s in range(1, p.sliced_size + 1) if s == 1 or p.sliced_size % (math.lcm(*mesh) * s * block) == 0]
            for p in products
        ]
        prices = [
            {
                s: price_product(cluster, p, algorithm="meshslice", mesh_shape=mesh, options=AlgorithmOptions(slices=s))
                for s in counts
            }
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
    cluster = load_cluster("tpu-v4-simulation")
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
            tune_by_paper(problem, cluster, chips, memory_limit_bytes=limit)
        return
    tuning = tune_by_paper(problem, cluster, chips, memory_limit_bytes=limit)
    assert tuning.best.time_s == pytest.approx(expected[0], rel=1e-12)
    assert tuning.best.memory_bytes <= limit


def test_gpt3_on_256_chips():
    """Section 3.2.1 and data/tpu_v4.md: QKV and FF1 keep Y, OUT and FF2 keep X; the best mesh is 32x8."""
    tuning = tune_by_paper(gpt3())
    plan = tuning.plan
    assert plan.mesh_shape == (32, 8)
    assert [layer.stationary for layer in plan.layers] == [Stationary.Y, Stationary.X] * 2
    assert not any(layer.is_transposed for layer in plan.layers)
    assert tuning.best.utilisation == pytest.approx(0.638, abs=5e-4)
    assert [row.time_s for row in tuning.table] == sorted(row.time_s for row in tuning.table)


def test_4096_chips_are_quick():
    start = time.process_time()
    tuning = tune_by_paper(gpt3(batch=2048), num_chips=4096)
    # Aim: 2 s.
    assert time.process_time() - start < 6 * machine_pace()
    assert tuning.plan.mesh_shape == (256, 16)


def test_all_algorithms_on_4096_chips_are_quick():
    start = time.process_time()
    tuned = tune_by_paper(gpt3(batch=2048), num_chips=4096)
    for algorithm in ALGORITHMS:
        tune_by_paper(gpt3(batch=2048), "tpu-v4-simulation", 4096, algorithm, math.inf, unroll_as=tuned)
    assert time.process_time() - start < 6 * machine_pace()


def test_unrolling_as_a_tuning_that_is_known():
    problem = gpt3(num_blocks=1)
    tuned = tune_by_paper(problem, memory_limit_bytes=math.inf)
    for algorithm in ("wang", "1d_tp"):
        shared = tune_by_paper(problem, algorithm=algorithm, memory_limit_bytes=math.inf, unroll_as=tuned)
        assert shared == tune_by_paper(problem, algorithm=algorithm, memory_limit_bytes=math.inf)
    for other in (tune_by_paper(gpt3(num_blocks=2)), tune_by_paper(problem, num_chips=64)):
        with pytest.raises(
            GemmError, match="unroll_as must be what MeshSlice was tuned to for the same problem on 256"
        ):
            tune_by_paper(problem, algorithm="wang", unroll_as=other)


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


def test_baselines_are_unrolled_to_meshslices_slices():
    """To as many iterations as there are slices, or the most below that divide the ring (SUMMA: the parts)."""
    tuned = tune_by_paper(gpt3(num_blocks=1)).plan
    assert {count for layer in tuned.layers for count in layer.slices} == {3, 4, 6, 8}
    for algorithm in ("wang", "summa", "1d_tp", "fsdp"):
        plan = tune_by_paper(gpt3(num_blocks=1), algorithm=algorithm, memory_limit_bytes=math.inf).plan
        rows, columns = plan.mesh_shape
        chips = {Axis.ROWS: rows, Axis.COLUMNS: columns, None: math.lcm(rows, columns)}
        for layer in plan.layers:
            for count, ring, wanted in zip(layer.slices, layer.rings, tuned.layer(layer.name).slices, strict=True):
                assert count == max(divisor for divisor in range(1, wanted + 1) if chips[ring] % divisor == 0)
    assert {layer.slices for layer in tune_by_paper(gpt3(num_blocks=1), algorithm="collective").plan.layers} == {
        (1, 1, 1)
    }


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_meshslice_beats_the_others_of_the_paper(algorithm):
    best = tune_by_paper(gpt3(num_blocks=1), memory_limit_bytes=float("inf")).best
    other = tune_by_paper(gpt3(num_blocks=1), algorithm=algorithm, memory_limit_bytes=float("inf")).best
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
        plan = tune_by_paper(problem, replace(h200, **links), 8, mesh_shape=(4, 2)).plan
        assert plan.layer("ff1").stationary is Stationary.Y
        return plan.layer("ff1").slices[0]

    assert forward_slices(1e14, 0.0) == 1
    assert forward_slices(1e11, 3e-6) > 1


def test_memory_error_says_the_minimum():
    with pytest.raises(
        GemmError, match=r"nothing fits in 34.36 GB of each of 256 chips of tpu-v4-simulation: the minimum is (.*) GB"
    ):
        tune_by_paper(megatron_nlg())
    assert tune_by_paper(megatron_nlg(), recompute=True).best.memory_bytes < 34.36e9
    try:
        tune_by_paper(gpt3(num_blocks=1), memory_limit_bytes=1)
    except GemmError as error:
        minimum_bytes = float(str(error).split("the minimum is ")[1].split(" GB")[0]) * 1e9
    assert (
        tune_by_paper(gpt3(num_blocks=1), memory_limit_bytes=minimum_bytes * 1.02).best.memory_bytes
        <= minimum_bytes * 1.02
    )
    with pytest.raises(GemmError):
        tune_by_paper(gpt3(num_blocks=1), memory_limit_bytes=minimum_bytes * 0.98)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_chips": 385},
            r"num_chips is 385, but no mesh of 385 chips divides .*1x385: out_features of layer qkv is 36864, no "
            "multiple of 385, the nearest that fit: 36575 or 36960; .*Use num_chips 384 or 512, or pad the layers",
        ),
        ({"num_chips": 0}, r"num_chips must be a whole number of 1 or more, but is 0"),
        ({"num_chips": -8}, r"num_chips must be a whole number of 1 or more, but is -8"),
        ({"num_chips": 8.0}, r"num_chips must be a whole number of 1 or more, but is 8.0"),
        ({"num_slices": 0}, r"num_slices must be a whole number of 1 or more, but is 0"),
        ({"algorithm": "collective", "num_slices": 2}, r"collective does not slice, but num_slices is 2. Leave it out"),
        ({"block": 0}, r"block must be a whole number of 1 or more, but is 0"),
        ({"keep": 0}, r"keep must be a whole number of 1 or more, but is 0"),
        ({"memory_limit_bytes": 0}, r"memory_limit_bytes must be a number above 0, but is 0"),
        ({"memory_limit_bytes": "32GB"}, r"memory_limit_bytes must be a number above 0, but is '32GB'"),
        ({"recompute": "no"}, r"recompute must be True or False, but is 'no'"),
        (
            {"algorithm": "wang", "unroll_as": "x"},
            "unroll_as must be what `autotune` returned for MeshSlice, but is 'x'",
        ),
        ({"stationary": "z"}, r"stationary must be one of 'y', 'x', 'w', but is 'z'"),
        ({"algorithm": "1d_tp", "stationary": "y"}, r"1d_tp keeps w, whatever stationary is 'y'. Leave it out"),
        ({"algorithm": "fsdp", "stationary": "w"}, r"fsdp moves w, but stationary is 'w'. Leave it out"),
        ({"mesh_shape": 256}, r"mesh_shape must be the rows and columns of chips, say \(4, 2\), but is 256"),
        ({"mesh_shape": (0, 256)}, r"each of mesh_shape must be a whole number of 1 or more, but is 0 in \(0, 256\)"),
        ({"num_chips": 8192}, r"num_chips should be from 1 to the 4096 of tpu-v4-simulation, found 8192"),
        (
            {"algorithm": "cannon", "num_chips": 8},
            r"cannon needs a square mesh, which 8 chips cannot give. Use num_chips 4 or 16\.",
        ),
        (
            {"algorithm": "fsdp", "mesh_shape": (16, 16)},
            r"fsdp needs a mesh of one column, which the mesh 16x16 cannot",
        ),
        ({"mesh_shape": (4, 4)}, r"the mesh 4x4 has 16 chips, but num_chips is 256"),
        ({"algorithm": "strassen"}, r"no GeMM algorithm is called 'strassen'. Use one of: meshslice, "),
    ],
)
def test_errors(options, message):
    with pytest.raises(GemmError, match=message):
        tune_by_paper(gpt3(), **options)


def fc(in_features, out_features):
    return FcLayer(name="fc", in_features=in_features, out_features=out_features)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ({"layers": ()}, r"layers of a problem must be one FcLayer or more, in a tuple, but are \(\)"),
        ({"layers": (fc(64, 64), fc(64, 128))}, r"each layer .* needs its own name, but 2 are 'fc'"),
        ({"layers": (fc(64, 0),)}, "out_features must be a whole number of 1 or more, but is 0 in layer 'fc'"),
        ({"num_rows": 0}, "num_rows of a problem must be a whole number of 1 or more, but is 0"),
        ({"num_rows": 64.0}, r"num_rows of a problem must be a whole number of 1 or more, but is 64\.0"),
        ({"num_blocks": -1}, "num_blocks of a problem must be a whole number of 1 or more, but is -1"),
    ],
)
def test_problems_that_are_none(problem, message):
    with pytest.raises(GemmError, match=message):
        tune_by_paper(GemmProblem(**({"layers": (fc(64, 64),), "num_rows": 64} | problem)), num_chips=4)


def test_a_problem_is_needed():
    with pytest.raises(GemmError, match="problem must be a GemmProblem, but is 'gpt3'"):
        tune_by_paper("gpt3")
    with pytest.raises(GemmError, match="batch must be a whole number of 1 or more, but is None"):
        gpt3(batch=None)
    with pytest.raises(GemmError, match="hidden must be a whole number of 1 or more, but is 0"):
        transformer_block(0, num_rows=64)


def test_words_will_do():
    assert tune_by_paper(gpt3(num_blocks=1), stationary="y") == tune_by_paper(
        gpt3(num_blocks=1), stationary=Stationary.Y
    )
    assert tune_by_paper(gpt3(num_blocks=1), mesh_shape=[32, 8]).plan.mesh_shape == (32, 8)


@given(
    sizes=st.tuples(*[st.integers(1, 24)] * 3),
    mesh_shape=st.sampled_from([(1, 8), (2, 4), (4, 2), (8, 1), (2, 2), (3, 2)]),
    stationary=st.sampled_from(Stationary),
    is_transposed=st.booleans(),
)
def test_what_does_not_divide_in_the_layers_words(sizes, mesh_shape, stationary, is_transposed):
    """Just where one of the layer's three products does not divide; and what is said to fit does."""
    names = ("num_rows", "in_features", "out_features")
    plan = LayerPlan(name="fc", stationary=stationary, is_transposed=is_transposed)

    def fits(num_rows, inner, outer):
        products = sized_products(
            fc(inner, outer), num_rows=num_rows, stationary=stationary, is_transposed=is_transposed
        )
        return all(product.is_divided_by(mesh_shape) for product in products)

    texts = list(indivisible(fc(*sizes[1:]), plan, num_rows=sizes[0], mesh_shape=mesh_shape))
    assert (not texts) == fits(*sizes)
    wanted = dict(zip(names, sizes, strict=True))
    for text in texts:
        wanted[text.split()[0]] = int(text.split()[-1])
    assert fits(*wanted.values())


def test_table_text():
    tuning = tune_by_paper(gpt3(num_blocks=1), keep=2)
    assert str(tuning).splitlines() == [
        "meshslice on 256 chips of tpu-v4-simulation: the best 2 of 9 meshes",
        "qkv keeps Y, out keeps X, ff1 keeps Y, ff2 keeps X",
        "mesh    qkv    out    ff1    ff2     time  utilisation  exposed  memory",
        "32x8  6,6,6  4,3,4  8,8,8  8,8,8  64.1 ms        63.8%    30.3%  0.5 GB",
        "64x4  3,3,3  2,2,2  3,4,4  4,3,4  83.8 ms        48.9%    46.6%  0.7 GB",
    ]


@given(dim=st.integers(1, 400), rows=st.sampled_from([1, 2, 4]), columns=st.sampled_from([1, 2, 4]))
def test_slice_counts(dim, rows, columns):
    product = sized_product(dataflow=Dataflow.OS, m=64, k=dim * rows * columns, n=64)
    counts = slice_counts(product, mesh_shape=(rows, columns), block=4)
    assert counts == tuple(
        s for s in range(1, dim * 4 + 1)
        if s == 1 or (dim * rows % (4 * s) == 0 and dim * columns % (4 * s) == 0)
    )  # fmt: skip


def test_divisors():
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)


@pytest.mark.parametrize(
    "algorithm", ["meshslice", "collective", "cannon", pytest.param("summa", marks=pytest.mark.slow)]
)
def test_what_was_tuned_runs(algorithm):
    """A tuning goes into `matmul` as it is, whatever the algorithm."""
    problem = GemmProblem(layers=(FcLayer(name="a", in_features=64, out_features=128),), num_rows=64)
    tuning = tune_by_paper(
        problem, cluster="tpu-v4-simulation", num_chips=4, algorithm=algorithm, mesh_shape=(2, 2), block=2
    )
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("rows", "columns"))
    x, w = np.ones((64, 64), np.float32), np.ones((64, 128), np.float32)
    np.testing.assert_array_equal(matmul(x, w, mesh=mesh, plan=tuning, layer="a"), x @ w)
