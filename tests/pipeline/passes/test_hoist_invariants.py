"""Equations that are the same for every microbatch run once per step."""

import jax
import jax.numpy as jnp
import pytest

import jaxquard as jq
from tests.pipeline.mlp_step import MlpStep
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import count_primitive, is_loop_task, plan, runs, with_schedule


def count_casts(program, *, to, in_loop):
    """Conversions of kernels to a dtype, over all tasks inside or outside the loop."""

    def in_call(call):
        return sum(
            equation.primitive.name == "convert_element_type"
            and equation.params["new_dtype"] == to
            and equation.invars[0].aval.shape == (4, 4)
            and equation.invars[0].aval.dtype == jnp.float32
            for equation in call.code.jaxpr.eqns
        )

    return sum(in_call(program.calls[run.call]) for _, run in runs(program) if is_loop_task(run.task) is in_loop)


def forward_only(schedule, num_microbatches=4):
    step = MlpStep(3, dtype=jnp.bfloat16)
    state, batch = step.arguments(num_microbatches)
    loss = lambda accumulate, state, batch: accumulate(lambda m: step.loss(state["params"], m), "mean")(batch)  # noqa: E731
    return plan(with_schedule(loss, schedule), state, batch, num_actors=3, has_state=False)


def test_casts_run_once_per_step():
    planned = forward_only(jq.schedules.GPipe(3))
    assert count_casts(planned.program, to=jnp.bfloat16, in_loop=True) == 0
    assert count_casts(planned.program, to=jnp.bfloat16, in_loop=False) == 3


@pytest.mark.parametrize("is_rematted", [False, True])
def test_casts_of_weights_that_are_trained(is_rematted):
    """In the loop only gradients are cast: one to bfloat16 and back, for each of 3 kernels and 4 microbatches."""
    step = MlpStep(3, dtype=jnp.bfloat16, is_rematted=is_rematted)
    state, batch = step.arguments(4)
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(3)), state, batch, num_actors=3)
    assert count_casts(planned.program, to=jnp.bfloat16, in_loop=False) == 3
    assert count_casts(planned.program, to=jnp.bfloat16, in_loop=True) == 3 * 4


def test_a_norm_of_weights_leaves_the_loop_and_a_transpose_stays():
    def step(accumulate, weight, batch):
        def loss(x):
            scale = jnp.sqrt(jnp.sum(jnp.square(weight)))
            return jnp.sum(x @ weight.T) / scale

        return accumulate(loss, "sum")(batch)

    weight, batch = jnp.arange(6.0).reshape(3, 2), jnp.ones((3, 4, 2))
    planned = plan(with_schedule(step, jq.schedules.GPipe(1)), weight, batch, num_actors=1, has_state=False)
    names = {run.task: planned.program.calls[run.call] for _, run in runs(planned.program)}
    assert count_primitive(names["before.0"].code, "sqrt") == 1
    assert count_primitive(names["before.0"].code, "transpose") == 0
    assert count_primitive(names["0F0"].code, "sqrt") == 0
    assert_close(planned.run(weight, batch), run_oracle(step, weight, batch))


def test_what_would_grow_stays_in_the_loop():
    """A mask of the size of the activations is made in every task, not kept through the loop."""

    def step(accumulate, vector, batch):
        return accumulate(lambda x: jnp.sum(x * jnp.outer(vector, jnp.exp(vector))), "sum")(batch)

    vector, batch = jnp.linspace(0, 1, 64), jnp.ones((2, 64, 64))
    planned = plan(with_schedule(step, jq.schedules.GPipe(1)), vector, batch, num_actors=1, has_state=False)
    (before,) = (planned.program.calls[run.call] for _, run in runs(planned.program) if run.task == "before.0")
    assert [type_.shape for type_ in before.outputs] == [(64,)]
    assert_close(planned.run(vector, batch), run_oracle(step, vector, batch))


def test_results_that_do_not_change_are_computed_once():
    """The gradient of a penalty on the weights, and an unused parameter's."""

    def step(accumulate, weights, batch):
        def grads(x):
            def loss(weights):
                return jnp.sum(x @ weights["used"]) + jnp.sum(jnp.square(weights["used"]))

            return jax.grad(loss)(weights), jnp.sum(weights["used"] ** 2), weights["unused"], 3

        return accumulate(grads, ("sum", "stack", "last", "mean"))(batch)

    weights, batch = {"used": jnp.arange(6.0).reshape(2, 3), "unused": jnp.ones(2)}, jnp.ones((3, 4, 2))
    planned = plan(with_schedule(step, jq.schedules.GPipe(1)), weights, batch, num_actors=1, has_state=False)
    found = planned.run(weights, batch)
    assert_close(found, run_oracle(step, weights, batch))
