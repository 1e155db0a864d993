"""The numbers behind the figures and tables, against computations of their own."""

import itertools
import math
from dataclasses import replace
from statistics import mean

import pytest

from jaxquard.cluster import load_cluster
from jaxquard.evaluate.meshslice.figures.product_shapes import distinct_products, mean_gain, product_shapes
from jaxquard.evaluate.meshslice.figures.slice_counts import possible_counts
from jaxquard.evaluate.meshslice.figures.three_dimensions import MIB, three_dimensions
from jaxquard.evaluate.meshslice.figures.what_runs import fastest
from jaxquard.evaluate.meshslice.setup.constant_sets import constant_sets
from jaxquard.evaluate.meshslice.setup.models import GPT3, MEGATRON, MODELS
from jaxquard.evaluate.meshslice.setup.other_layers import other_layers_time_s
from jaxquard.gemm.autotune.autotune import autotune
from jaxquard.gemm.cost.cost import price_product
from jaxquard.gemm.cost.steps import meshslice_steps
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow, Stationary
from tests.gemm.headline_numbers import headline_numbers
from tests.gemm.sized_products import sized_product
from tests.gemm.tune_by_paper import tune_by_paper

PEAK = 272e12


def find(points, **wanted):
    (point,) = (one for one in points if all(getattr(one, name) == value for name, value in wanted.items()))
    return point


def op(ring, shard, bandwidth, *, launch=100e-6, sync=6e-6):
    """Section 3.2.2, as data/tpu_v4.md writes it."""
    return launch + (ring - 1) * (sync + shard / bandwidth)


def block_time_s(hidden, tokens, rows, columns, slices):
    """MeshSlice on the simulation set in data/tpu_v4.md's closed forms, the same slices everywhere."""
    total, chips = 0.0, rows * columns
    for in_features, out_features, largest_is_output in (
        (hidden, 3 * hidden, True),
        (hidden, hidden, False),
        (hidden, 4 * hidden, True),
        (4 * hidden, hidden, False),
    ):
        compute = 2 * tokens * in_features * out_features / chips / 249e12 / slices
        small = 2 * tokens * (in_features if largest_is_output else out_features) / chips / slices
        weight = 2 * in_features * out_features / chips / slices
        gathered, scattered = op(columns, small, 60e9), op(columns, small, 50e9)
        weight_gathered, weight_scattered = op(rows, weight, 60e9), op(rows, weight, 50e9)
        output_stationary = max(gathered, weight_gathered)
        total += output_stationary + (slices - 1) * max(output_stationary, compute) + compute
        for first, second in ((scattered, weight_gathered), (gathered, weight_scattered)):
            total += first + second + compute + (slices - 1) * max(first, second, compute)
    return total


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.key)
def test_slice_counts_against_the_closed_forms(model, results):
    tokens = 128 * 2048
    flops = 3 * 2 * tokens * 12 * model.hidden**2
    points = [point for point in results.slice_counts if point.model == model.key]
    assert [point.num_slices for point in points] == list(possible_counts(model))
    for point in points:
        time_s = block_time_s(model.hidden, tokens, 32, 8, point.num_slices)
        assert point.estimated == pytest.approx(flops / (time_s * 256 * PEAK), rel=1e-9)
        assert point.simulated <= point.estimated * (1 + 1e-9)


def test_weak_scaling_is_that_of_the_autotuner(results):
    """The preset, but for broadcasts, which the paper's machine has."""
    preset = load_cluster("tpu-v4-simulation")
    with_broadcasts = replace(preset, network=replace(preset.network, has_broadcast=True))
    expected = headline_numbers(with_broadcasts, chips=(64,))
    for row in expected:
        model = row.model.removesuffix("_nlg")
        point = find(results.weak_scaling, model=model, algorithm=row.algorithm, num_chips=64)
        assert point.utilisation == pytest.approx(row.utilisation, rel=1e-12)
    assert len(results.weak_scaling) == 2 * (5 * 6 + 3)


def test_strong_scaling_meets_weak_scaling_at_64_chips(results):
    """Section 5.1.3: a batch of 32 is that of 64 chips in weak scaling."""
    algorithms = {point.algorithm for point in results.strong_scaling}
    assert "fsdp" not in algorithms
    assert len(algorithms) == 6
    for model in MODELS:
        for algorithm in algorithms:
            where = {"model": model.key, "algorithm": algorithm, "num_chips": 64}
            assert find(results.strong_scaling, **where) == find(results.weak_scaling, **where)


def test_communication_adds_up(results):
    """Exposed communication is at most all of it; products take what their FLOPs take."""
    for bar in results.communication:
        point = find(results.weak_scaling, model=bar.model, algorithm=bar.algorithm, num_chips=256)
        assert bar.total * point.compute_s >= point.time_s - point.compute_s - 1e-12
        assert point.compute_s == pytest.approx(point.utilisation * point.time_s * PEAK / 249e12)


def test_the_eight_products():
    for model in MODELS:
        products = distinct_products(model)
        h, tokens = model.hidden, 128 * 2048
        shapes = {(product.m, product.n, product.k) for _, product in products}
        assert len(products) == 8
        assert shapes == {
            (tokens, 3 * h, h),
            (tokens, h, 3 * h),
            (tokens, h, h),
            (tokens, 4 * h, h),
            (tokens, h, 4 * h),
            (h, 3 * h, tokens),
            (h, h, tokens),
            (h, 4 * h, tokens),
        }


def test_product_shapes_by_brute_force(results):
    cluster = load_cluster("tpu-v4-simulation")
    point = find(results.product_shapes, product="FF1 data", algorithm="meshslice", model="gpt3")
    product = sized_product(dataflow=Dataflow.LS, m=128 * 2048, k=4 * 12288, n=12288)
    times = [
        price_product(
            cluster,
            product,
            algorithm="meshslice",
            mesh_shape=(rows, 256 // rows),
            options=AlgorithmOptions(slices=slices),
        ).time_s
        for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256)
        for slices in range(1, 193)
        if math.gcd(12288 // rows, 12288 * rows // 256) % (8 * slices) == 0
    ]
    assert point.time_s == pytest.approx(min(times), rel=1e-12)


def test_mean_gain_of_products():
    points = product_shapes(load_cluster("tpu-v4-simulation"), algorithms=("meshslice", "collective"))
    ours, theirs = points[::2], points[1::2]
    expected = mean(b.time_s / a.time_s - 1 for a, b in zip(ours, theirs, strict=True))
    assert mean_gain(points, "collective") == pytest.approx(expected)


def test_dataflow_table(results):
    """Table 2 with nothing else changed: the unoptimised plan keeps Y everywhere."""
    for row, model in zip(results.dataflow_table, MODELS, strict=True):
        plain = tune_by_paper(
            model.problem(128), "tpu-v4-simulation", stationary=Stationary.Y, memory_limit_bytes=math.inf
        ).best
        assert {layer.stationary for layer in plain.plan.layers} == {Stationary.Y}
        assert row.unoptimised == plain.utilisation
        assert (
            row.optimised
            == find(results.weak_scaling, model=model.key, algorithm="meshslice", num_chips=256).utilisation
        )


def test_mesh_shapes(results):
    for model in MODELS:
        points = [point for point in results.mesh_shapes if point.model == model.key]
        assert [point.mesh_shape for point in points] == [(2**power, 2 ** (8 - power)) for power in range(8, -1, -1)]
        assert max(points, key=lambda point: point.simulated).mesh_shape == (32, 8)
        assert all(point.simulated <= point.estimated * (1 + 1e-9) for point in points)


def test_real_mesh(results):
    """data/tpu_v4.md: Collective 46.3 / 49.2 %; without the copies MeshSlice 44.9 / 48.6 %."""
    gpt3, megatron = results.real_mesh
    assert (100 * gpt3.collective, 100 * megatron.collective) == pytest.approx((46.3, 49.2), abs=0.05)
    for row, expected in ((gpt3, 44.9), (megatron, 48.6)):
        without_copies = 1 / (1 / row.meshslice - row.slicing / row.collective)
        assert 100 * without_copies == pytest.approx(expected, abs=0.05)
        assert row.wang < row.wang_overlapped
        assert row.meshslice < row.collective < row.meshslice_overlapped


def test_copies_of_slices(results):
    """Both moving matrices of each product, read and written once, at 1,228 GB/s."""
    hidden, tokens = GPT3.hidden, 16 * 2048
    moved = 0
    for in_features, out_features in (
        (hidden, 3 * hidden),
        (hidden, hidden),
        (hidden, 4 * hidden),
        (4 * hidden, hidden),
    ):
        moved += 3 * (tokens * min(in_features, out_features) + in_features * out_features)
    copies_s = 2 * 2 * moved / 16 / 1228e9
    collective_s = 3 * 2 * tokens * 12 * hidden**2 / (16 * PEAK) / results.real_mesh[0].collective
    assert results.real_mesh[0].slicing == pytest.approx(copies_s / collective_s, rel=1e-9)


def test_layer_communication(results):
    """QKV of GPT-3 on the 4x4 mesh, 8 slices, by hand."""
    x, w = 2 * 16 * 2048 * 12288 / 16 / 8, 2 * 12288 * 36864 / 16 / 8
    times = [
        (13e-6 + 3 * (5e-6 + x / 79.751e9)) * 2 + 26e-6 + 3 * (5e-6 + x / 63.167e9),
        (13e-6 + 3 * (5e-6 + w / 27.472e9)) * 2 + 26e-6 + 3 * (5e-6 + w / 37.506e9),
    ]
    assert results.layer_communication[0].estimated_s == pytest.approx(8 * sum(times), rel=1e-9)
    assert len(results.layer_communication) == 8


def test_section_7():
    """1.6 GB = 4 (384 + 4.5) MiB, 402 MiB and 336 = 8 x 24 + 32 x 4.5 MiB; with P - 1 as the moves are priced."""
    plain, kept, ours = three_dimensions()
    assert plain.traffic_bytes == 4 * (384 + 4.5) * MIB
    assert plain.traffic_bytes / 1e9 == pytest.approx(1.6, abs=0.05)
    assert kept.traffic_bytes == 402 * MIB
    assert ours.traffic_bytes == 336 * MIB
    product = sized_product(dataflow=Dataflow.LS, m=256 * 1024, k=48 * 1024, n=12 * 1024)
    steps = meshslice_steps(load_cluster("tpu-v4-simulation"), product, (32, 8), AlgorithmOptions(slices=1))
    assert sum(move.size_bytes for move in steps.first_loads + steps.last_stores) == ours.minimum_traffic_bytes


def test_other_layers():
    """The roofline of GPT-3 in all: 1,024 tokens a chip, 11 passes over fp32 scores, 54 over activations."""
    cluster = load_cluster("tpu-v4-simulation")
    scores, activations = 1024 * 96 * 2048 * 4, 1024 * 12288 * 2
    expected = (11 * scores + 54 * activations) / 1228e9
    assert other_layers_time_s(GPT3, cluster, batch=128, num_chips=256) == pytest.approx(expected, rel=1e-12)
    assert other_layers_time_s(MEGATRON, cluster, batch=128, num_chips=256) == pytest.approx(expected * 160 / 96)


def test_constant_sets():
    labels = [one.label for one in constant_sets()]
    assert len(set(labels)) == 12
    assert labels[:2] == ["simulation, SendRecv both ways, a launch each", "simulation, SendRecv both ways, one launch"]
    assert [one.is_fitted for one in constant_sets()] == [False] * 8 + [True] * 4


def test_beyond_the_paper(results):
    assert {point.num_chips for point in results.beyond} == {1024, 4096}
    assert len(results.beyond) == 2 * 2 * 7
    for point in results.beyond:
        smaller = find(results.weak_scaling, model=point.model, algorithm=point.algorithm, num_chips=256)
        assert point.utilisation < smaller.utilisation


def test_what_runs(results):
    """The order hangs on the launch of a permute and on the ways of a link; Collective is last of the three."""
    points = {(p.model, p.algorithm, p.launches_each_permute, p.is_bidirectional): p for p in results.what_runs}
    assert len(points) == 2 * 3 * 4
    for model in ("gpt3", "megatron"):
        for each, both in itertools.product((True, False), repeat=2):
            times_s = {name: points[model, name, each, both].time_s for name in ("meshslice", "collective", "wang")}
            assert times_s["meshslice"] < times_s["collective"]
        assert points[model, "meshslice", False, True].time_s < points[model, "meshslice", True, True].time_s
        assert points[model, "wang", True, True].time_s < points[model, "wang", True, False].time_s
    assert set(fastest(results.what_runs).values()) == {"meshslice", "wang"}


def test_what_runs_is_what_the_autotuner_says(results):
    point = next(p for p in results.what_runs if p.algorithm == "wang" and p.model == "gpt3")
    best = autotune(MODELS[0].problem(128), "tpu-v4", 256, "wang", memory_limit_bytes=math.inf).best
    assert (point.time_s, point.mesh_shape) == (best.time_s, best.mesh_shape)
