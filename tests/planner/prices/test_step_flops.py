"""FLOPs of steps, against closed forms."""

import jax
import pytest

from jaxquard.cluster import load_cluster
from jaxquard.intraop.segments.analysis import analyse_step
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.planner.prices.step_flops import bound_time_s, step_flops
from tests.intraop.steps import zoo_types
from tests.planner.prices.small_steps import BATCH, DIM, HIDDEN, analyse_mlp


def model_flops(name: str, **options) -> float:
    return step_flops(analyse_step(trace_step(*zoo_types(name, **options)), axes={"x": 8}).graph)


def test_an_mlp_has_two_products_forward_and_three_backward():
    assert step_flops(analyse_mlp().graph) == 5 * 2 * BATCH * DIM * HIDDEN


def test_a_gpt_has_three_times_its_forward():
    batch, length, dim, vocab, layers = 8, 32, 64, 256, 2
    layer = 2 * batch * length * (12 * dim**2 + 2 * length * dim)
    assert model_flops("gpt-tiny") == 3 * (layers * layer + 2 * batch * length * dim * vocab)


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny"])
def test_what_a_checkpoint_recomputes_is_no_model_flop(name):
    assert model_flops(name, remat=True) == model_flops(name)


def test_a_loop_that_is_not_opened_counts_as_often_as_it_runs():
    def step(params, x):
        def loss(params):
            carry, _ = jax.lax.scan(lambda carry, _: (carry @ params, None), x @ params, length=3)
            return carry.sum()

        value, grads = jax.value_and_grad(loss)(params)
        return params - grads, value

    side = jax.ShapeDtypeStruct((64, 64), "float32")
    found = step_flops(analyse_step(trace_step(step, (side, side)), axes={"x": 8}).graph)
    # Each of the four products has one for its weight; all but the first has one for its input.
    assert found == 2 * 64**3 * (4 + 4 + 3)


def test_no_plan_is_faster_than_the_peak_of_all_devices():
    cluster = load_cluster("h100-8")
    assert bound_time_s(8e15, cluster, 8) == pytest.approx(1e15 / cluster.compute.peak_flops_per_s)
