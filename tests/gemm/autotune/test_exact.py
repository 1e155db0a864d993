"""The exact search: nothing better is left out, slices are no thinner than they pay, ties are the simpler plan."""

import itertools
import math
import re
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

from benchmarks.gemm_regret import LIMIT, regret
from jaxquard.cluster import chip_speeds, load_cluster, preset_names
from jaxquard.cluster.times.product import arithmetic_s
from jaxquard.errors import GemmError, GemmWarning, InfeasibleGemmError
from jaxquard.gemm import FcLayer, GemmProblem, autotune, gpt3, matmul, megatron_nlg
from jaxquard.gemm.autotune.layouts import LAYER_LAYOUTS, LayoutStep, best_layouts
from jaxquard.gemm.layers.plan_file import parse_plan, plan_text
from jaxquard.gemm.problem import Stationary
from tests.machine_pace import machine_pace

_PRESETS = [name for name in preset_names() if not load_cluster(name).is_paper_set]


def _problem(*sizes, num_rows=4096):
    layers = (FcLayer(name=f"fc{i}", in_features=a, out_features=b) for i, (a, b) in enumerate(sizes))
    return GemmProblem(layers=tuple(layers), num_rows=num_rows)


@pytest.mark.thin(40)
@pytest.mark.parametrize("name", _PRESETS)
@pytest.mark.parametrize("num_chips", [4, 16])
def test_simulated_regret(name, num_chips):
    """Against every layout and slice count simulated, without the tuner's prices; no preset has fewer than 8 chips."""
    cluster = load_cluster(name)
    chips = min(num_chips, cluster.num_chips)
    assert regret(_problem((512, 2048), (2048, 512), num_rows=8192), cluster, chips) <= LIMIT


@pytest.mark.parametrize(
    ("name", "make", "num_chips", "simulated_ms"),
    [
        ("v5e", megatron_nlg, 8, 2248.7),
        pytest.param("v5e", megatron_nlg, 16, 1130.5, marks=pytest.mark.slow),
        ("v5e", gpt3, 16, 256.2),
        pytest.param("v5p", megatron_nlg, 8, 495.3, marks=pytest.mark.slow),
        ("tpu-v4", megatron_nlg, 8, 396.2),
    ],
)
def test_what_was_far_off_is_mended(name, make, num_chips, simulated_ms):
    """The paper's method picked slices so thin that their simulated time was many times the price."""
    problem = make(batch=num_chips // 2, num_blocks=1)
    best = autotune(problem, name, num_chips, memory_limit_bytes=math.inf).best
    assert best.simulated_s == pytest.approx(best.time_s, rel=0.02)
    assert best.simulated_s < simulated_ms * 1e-3 / 1.5
    assert max(count for layer in best.plan.layers for count in layer.slices) <= 32


def test_one_chip_is_not_sliced():
    plan = autotune(gpt3(batch=2, num_blocks=1), "tpu-v4", 1, memory_limit_bytes=math.inf).plan
    assert {layer.slices for layer in plan.layers} == {(1, 1, 1)}


def test_a_contraction_of_16_fills_an_eighth_of_the_array():
    for name, thin, whole in (("tpu-v4", 16, 128), ("v6e", 128, 256)):
        chip = chip_speeds(load_cluster(name))
        times_s = [arithmetic_s(chip, 4096, k, 4096, 1, "bf16") for k in (thin, whole)]
        assert times_s[0] == pytest.approx(times_s[1])


class TestLayouts:
    """Dynamic programming over the layers, against all sequences one by one."""

    @given(data=st.data())
    def test_by_brute_force(self, data):
        times = st.floats(0.1, 10)
        steps = [
            LayoutStep(
                choices={form: (data.draw(times), str(form)) for form in LAYER_LAYOUTS},
                transpose_s=data.draw(times),
                output_transpose_s=data.draw(times),
                ends_residual=data.draw(st.booleans()),
            )
            for _ in range(data.draw(st.integers(1, 3)))
        ]
        best_s, path = best_layouts(steps)
        expected_s = min(_walk(steps, is_turned, is_turned) for is_turned in (False, True))
        assert best_s == pytest.approx(expected_s)
        assert len(path) == len(steps)

    def test_a_residual_sum_keeps_an_even_number_of_turns(self):
        """W stationary turns the layout: with one layer alone it must be transposed back, which costs too much."""
        times = {form: (1.0 if form.stationary is Stationary.W else 2.0, None) for form in LAYER_LAYOUTS}
        step = LayoutStep(choices=times, transpose_s=5.0, output_transpose_s=5.0, ends_residual=True)
        ((form, _),) = best_layouts([step])[1]
        assert form.stationary is not Stationary.W
        best_s, path = best_layouts([replace(step, ends_residual=False), step])
        assert [form.stationary for form, _ in path] == [Stationary.W, Stationary.W]
        assert best_s == 2.0

    def test_nothing_where_no_form_can_be_had(self):
        step = LayoutStep(choices={}, transpose_s=0.0, output_transpose_s=0.0, ends_residual=True)
        assert best_layouts([step]) is None


def _walk(steps, starts_turned, is_turned):
    """The fastest way on from a layout."""
    if not steps:
        return 0.0 if is_turned == starts_turned else math.inf
    step, *others = steps
    times_s = []
    for form, (time_s, _) in step.choices.items():
        takes = form.is_transposed if form.stationary is not Stationary.W else not form.is_transposed
        gives = form.is_transposed
        spent_s = time_s + (step.transpose_s if takes != is_turned else 0)
        if step.ends_residual or not others:
            spent_s += step.output_transpose_s if gives != starts_turned else 0
            gives = starts_turned
        times_s.append(spent_s + _walk(others, starts_turned, gives))
    return min(times_s)


class TestAlgorithms:
    @pytest.mark.slow
    def test_all_are_at_most_each(self):
        problem = gpt3(batch=32, num_blocks=1)
        together = autotune(problem, "tpu-v4", 64, "all", memory_limit_bytes=math.inf).best
        for name in ("meshslice", "collective", "wang"):
            alone = autotune(problem, "tpu-v4", 64, name, memory_limit_bytes=math.inf).best
            assert together.simulated_s <= alone.simulated_s * 1.001

    @pytest.mark.slow
    def test_a_mixed_plan_says_so_and_runs(self):
        """Each layer by its own algorithm, on virtual devices."""
        problem = _problem((64, 128), (128, 64), num_rows=64)
        plan = autotune(problem, "v5e", 4, ("meshslice", "collective"), mesh_shape=(2, 2), block=2).plan
        mixed = replace(
            plan,
            algorithm="mixed",
            layers=tuple(
                replace(layer, algorithm=name, slices=(1, 1, 1), split_for_overlap=False)
                for layer, name in zip(plan.layers, ("collective", "wang"), strict=True)
            ),
        )
        assert parse_plan(plan_text(mixed)) == mixed
        mesh = Mesh(np.reshape(jax.devices()[:4], (2, 2)), ("rows", "columns"))
        x, up, down = jnp.ones((64, 64)), jnp.ones((64, 128)), jnp.ones((128, 64))
        hidden = matmul(x, up, mesh=mesh, plan=mixed, layer="fc0")
        assert jnp.array_equal(matmul(hidden, down, mesh=mesh, plan=mixed, layer="fc1"), x @ up @ down)
        with pytest.raises(GemmError, match="the plan's algorithm is wang, but cannon was asked for"):
            matmul(hidden, down, mesh=mesh, plan=mixed, layer="fc1", algorithm="cannon")

    def test_a_mixed_plan_without_the_algorithms_of_its_layers_is_refused(self):
        plan = autotune(_problem((64, 64)), "v5e", 4).plan
        text = plan_text(replace(plan, algorithm="mixed"))
        with pytest.raises(GemmError, match="has the algorithm 'mixed'; the algorithms are meshslice"):
            parse_plan(text)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"algorithm": ("meshslice", "1d_tp")}, "1d_tp sees the mesh as one row or column, and cannot be mixed"),
            ({"algorithm": ()}, "algorithm must be a name, several names or 'all', but is ()."),
            ({"method": "best"}, "method must be one of exact, paper, but is 'best'."),
            ({"algorithm": "all", "method": "paper"}, "the paper's method tunes one algorithm at a time"),
            ({"optimizer_bytes": -1}, "optimizer_bytes must be a whole number, 0 or more, but is -1."),
        ],
    )
    def test_refused(self, options, message):
        with pytest.raises(GemmError, match=re.escape(message)):
            autotune(gpt3(num_blocks=1), **options)

    @pytest.mark.parametrize("algorithm", ["1d_tp", "fsdp"])
    def test_one_dimensional_algorithms_keep_to_their_kind(self, algorithm):
        plan = autotune(gpt3(batch=8, num_blocks=1), "v5p", 16, algorithm, memory_limit_bytes=math.inf).plan
        kept = [(layer.stationary, layer.is_transposed) for layer in plan.layers]
        if algorithm == "fsdp":
            assert all(stationary is not Stationary.W and not is_transposed for stationary, is_transposed in kept)
        else:
            assert all(stationary is Stationary.W or not is_transposed for stationary, is_transposed in kept)


def test_the_papers_constants_are_warned_of():
    with pytest.warns(GemmWarning, match="tpu-v4-main has the constants of MeshSlice's own cost model"):
        autotune(gpt3(num_blocks=1), "tpu-v4-main", 16, memory_limit_bytes=math.inf)


@pytest.mark.slow
def test_memory_has_the_optimizers_state():
    problem = gpt3()
    with_state = autotune(problem, "tpu-v4", 256).best.memory_bytes
    without = autotune(problem, "tpu-v4", 256, optimizer_bytes=0).best.memory_bytes
    weights = sum(layer.in_features * layer.out_features for layer in problem.layers) * problem.num_blocks
    assert with_state - without == pytest.approx(12 * weights / 256, rel=0.05)
    with pytest.raises(InfeasibleGemmError, match=r"nothing fits in 16.00 GB .* optimizer state and activations"):
        autotune(problem, "v5e", 256)


@pytest.mark.slow
def test_4096_chips_all_algorithms_in_five_seconds():
    start_s = time.process_time()
    tuning = autotune(gpt3(batch=2048), "tpu-v4", 4096, "all")
    assert time.process_time() - start_s <= 5 * machine_pace()
    assert tuning.best.simulated_s <= tuning.table[1].simulated_s


def test_the_table_shows_both_times():
    text = str(autotune(gpt3(num_blocks=1), "tpu-v4", 256, keep=2))
    heading, first, second = (line.split() for line in text.splitlines()[2:])
    assert heading[-5:] == ["time", "simulated", "utilisation", "exposed", "memory"]
    for line in (first, second):
        price_ms, simulated_ms = (float(word) for word, unit in itertools.pairwise(line) if unit == "ms")
        assert simulated_ms == pytest.approx(price_ms, rel=0.02)
