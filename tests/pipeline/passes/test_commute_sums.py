"""A weight that several actors use costs each of them one partial sum, and one transfer after the loop."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

import jaxquard as jq
from tests.pipeline.mlp_step import MlpStep, weight_type
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import is_loop_task, plan, runs, sends, with_schedule


def transfers_of_weights(program, type_):
    """(source, target, when) of every value of a type that is sent."""
    last_loop_task = {actor: run.task for actor, run in runs(program) if is_loop_task(run.task)}
    found = Counter()
    for source, target, sent, before in sends(program):
        if sent == type_:
            when = "before" if not before or before.startswith("before") else "in the loop"
            if before == last_loop_task[source] or before.startswith("after"):
                when = "after"
            found[source, target, when] += 1
    return found


def partial_sums(program, actor, type_):
    """The number of accumulators of a type that an actor starts."""
    (start,) = (program.calls[run.call] for _, run in runs(program, actor) if run.task == "start")
    return [str(found) for found in start.outputs].count(type_)


@pytest.mark.parametrize(
    "schedule", [jq.schedules.GPipe(4), jq.schedules.OneFOneB(4), jq.schedules.ZeroBubbleH1(4)], ids=repr
)
def test_tied_embedding(schedule):
    step = MlpStep(4, is_tied=True)
    state, batch = step.arguments(5)
    planned = plan(with_schedule(step, schedule), state, batch, num_actors=4)
    assert transfers_of_weights(planned.program, weight_type()) == {(0, 3, "before"): 1, (3, 0, "after"): 1}
    counts = [partial_sums(planned.program, actor, weight_type()) for actor in range(4)]
    assert counts == [1, 1, 1, 2], "of its own weight, and on the last actor of the tied one"
    assert_close(planned.run(state, batch), run_oracle(step, state, batch))


def shared_step(num_stages, *, cast=None, reduce=("sum", "stack")):
    """Two weights, `a` and `b`; every stage uses both, `b` transposed, and `a` twice."""

    def step(accumulate, weights, batch):
        def loss(weights, x):
            a, b = (weights[name] if cast is None else weights[name].astype(cast) for name in "ab")
            for stage in range(num_stages):
                if stage:
                    x = jq.pipeline_yield(x)
                x = jnp.tanh(x.astype(a.dtype) @ a @ b.T + x.astype(a.dtype) @ a).astype(jnp.float32)
            return jnp.sum(jnp.square(x))

        def microbatch_grads(x):
            value, grads = jax.value_and_grad(loss)(weights, x)
            return grads, value

        grads, losses = accumulate(microbatch_grads, reduce)(batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), losses

    weights = {"a": jnp.linspace(-0.5, 0.5, 9).reshape(3, 3), "b": jnp.linspace(0.4, -0.3, 9).reshape(3, 3)}
    return step, weights, jnp.linspace(-1, 1, 4 * 2 * 3).reshape(4, 2, 3)


@pytest.mark.thin(2)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize(
    "schedule",
    [
        jq.schedules.OneFOneB(4),
        jq.schedules.Interleaved(4, 2),
        jq.schedules.ZeroBubbleV(4),
        jq.schedules.DualPipeV(4),
        jq.schedules.ZeroBubbleH2(3),
    ],
    ids=repr,
)
def test_two_weights_each_used_by_every_stage(schedule, reduce):
    step, weights, batch = shared_step(schedule.num_stages, reduce=(reduce, "stack"))
    planned = plan(with_schedule(step, schedule), weights, batch, num_actors=schedule.num_actors)
    others = range(1, schedule.num_actors)
    expected = {(0, other, "before"): 2 for other in others} | {(other, 0, "after"): 2 for other in others}
    assert transfers_of_weights(planned.program, "float32[3,3]") == expected
    for actor in range(schedule.num_actors):
        assert partial_sums(planned.program, actor, "float32[3,3]") == 2
    assert_close(planned.run(weights, batch), run_oracle(step, weights, batch))


def test_casts_of_shared_weights():
    """Each actor sums in float32, so that one float32 partial sum crosses; the casts run once, at home."""
    step, weights, batch = shared_step(3, cast=jnp.bfloat16)
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(3)), weights, batch, num_actors=3)
    program = planned.program
    assert transfers_of_weights(program, "float32[3,3]") == {(1, 0, "after"): 2, (2, 0, "after"): 2}
    assert transfers_of_weights(program, "bfloat16[3,3]") == {(0, 1, "before"): 2, (0, 2, "before"): 2}
    assert_close(planned.run(weights, batch), run_oracle(step, weights, batch), relative=5e-2)


def test_a_sum_that_is_also_stacked_stays_in_the_loop():
    """The user asks for every microbatch's gradient, so nothing can be taken apart."""

    def step(accumulate, weight, batch):
        def grads(x):
            def loss(weight):
                hidden = jq.pipeline_yield(jnp.tanh(x @ weight))
                return jnp.sum(hidden @ weight)

            grad = jax.grad(loss)(weight)
            return grad, grad

        return accumulate(grads)(batch)

    weight, batch = jnp.linspace(-0.5, 0.5, 9).reshape(3, 3), jnp.linspace(-1, 1, 18).reshape(3, 2, 3)
    for schedule in (jq.schedules.OneFOneB(2), jq.schedules.ZeroBubbleH1(2)):
        planned = plan(with_schedule(step, schedule), weight, batch, num_actors=2, has_state=False)
        assert_close(planned.run(weight, batch), run_oracle(step, weight, batch))


def test_scaled_and_transposed_sums():
    """Linear operations between the sum and the result move to its terms."""

    def step(accumulate, weight, batch):
        def grads(x):
            def loss(weight):
                hidden = jq.pipeline_yield(jnp.tanh(x @ weight.T / 2.0))
                return jnp.sum(jnp.tanh(hidden @ (weight.T / 2.0))) * 3.0

            return jax.grad(loss)(weight) * 0.5

        return accumulate(grads)(batch)

    weight, batch = jnp.linspace(-0.5, 0.5, 9).reshape(3, 3), jnp.linspace(-1, 1, 18).reshape(3, 2, 3)
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(2)), weight, batch, num_actors=2, has_state=False)
    crossing = transfers_of_weights(planned.program, "float32[3,3]")
    assert crossing[1, 0, "in the loop"] == crossing[0, 1, "in the loop"] == 0
    assert_close(planned.run(weight, batch), run_oracle(step, weight, batch))
