"""Before and after the loop everything runs where its data is, and only scalars cross."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxquard as jq
from tests.pipeline.mlp_step import MlpStep, adamw
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import is_loop_task, plan, sends, with_schedule
from tests.slow_but_for import slow_but_for


def input_actors(planned, args):
    """For each leaf of the arguments, the actors that hold it."""
    numbers = range(len(jax.tree.leaves(args)))
    held = [
        tuple(actor for actor, found in enumerate(planned.program.actors) if any(i.arg == arg for i in found.inputs))
        for arg in numbers
    ]
    return jax.tree.unflatten(jax.tree.structure(args), held)


def outside_the_loop(program):
    return [(source, target, type_) for source, target, type_, before in sends(program) if not is_loop_task(before)]


@pytest.mark.parametrize(
    "schedule",
    slow_but_for([jq.schedules.OneFOneB(4), jq.schedules.ZeroBubbleV(8)], [jq.schedules.OneFOneB(4)]),
    ids=repr,
)
def test_a_stock_optimizer_sends_nothing_but_scalars(schedule):
    step = MlpStep(schedule.num_stages, optimizer=adamw())
    state, batch = step.arguments(4)
    planned = plan(with_schedule(step, schedule), state, batch, num_actors=schedule.num_actors)
    crossing = outside_the_loop(planned.program)
    assert crossing
    assert {type_.partition("[")[2] for _, _, type_ in crossing} == {"]"}, "only scalars"
    hub_to_others = [(source, target) for source, target, _ in crossing]
    assert all(0 in pair for pair in hub_to_others), "one hop to the hub, and one back"
    assert_close(planned.run(state, batch), run_oracle(step, state, batch))


def test_state_lives_with_the_stage_that_uses_it():
    step = MlpStep(3, optimizer=adamw())
    state, batch = step.arguments(2)
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(3)), state, batch, num_actors=3)
    held, data = input_actors(planned, (state, batch))
    expected = [{"kernel": (actor,), "bias": (actor,)} for actor in range(3)]
    assert held["params"]["layers"] == expected
    adam = held["optimizer"][1][0]
    assert adam.mu["layers"] == adam.nu["layers"] == expected
    assert adam.count == (0, 1, 2), "every actor counts for itself"
    assert data == {"x": (0,), "y": (2,)}


def test_a_shared_weight_lives_with_its_first_user():
    step = MlpStep(3, is_tied=True)
    state, batch = step.arguments(2)
    planned = plan(with_schedule(step, jq.schedules.Interleaved(3, 3)), state, batch, num_actors=3)
    held, _ = input_actors(planned, (state, batch))
    assert held["params"]["layers"][0]["kernel"] == (0,)


def test_frozen_unused_and_untouched_leaves():
    optimizer = optax.adam(0.1)

    def step(accumulate, state, batch):
        def loss(params, x):
            hidden = jq.pipeline_yield(x @ params["first"] @ state["frozen"])
            return jnp.sum(jnp.square(hidden @ params["second"]))

        def microbatch_grads(x):
            value, grads = jax.value_and_grad(loss)(state["params"], x)
            return grads, value

        grads, losses = accumulate(microbatch_grads)(batch)
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        new_state = {**state, "params": params, "opt": opt, "count": state["count"] + 1}
        return new_state, losses, state["frozen"], batch[0], jnp.float32(7), losses

    params = {"first": jnp.ones((2, 2)), "second": jnp.ones((2, 3)), "unused": jnp.arange(5.0)}
    state = {
        "params": params,
        "opt": optimizer.init(params),
        "frozen": jnp.eye(2) * 0.5,
        "never used": jnp.arange(3),
        "count": jnp.int32(4),
    }
    batch = jnp.linspace(-1, 1, 12).reshape(3, 2, 2)
    for donates in (False, True):
        planned = plan(with_schedule(step, jq.schedules.OneFOneB(2)), state, batch, num_actors=2, donates=donates)
        assert_close(planned.run(state, batch), run_oracle(step, state, batch))


def test_a_step_without_a_loop():
    def step(state, x):
        return jax.tree.map(lambda leaf: leaf * 2 + jnp.sum(x), state), x + 1

    state, x = {"a": jnp.ones(3), "b": jnp.zeros(2)}, jnp.arange(4.0)
    planned = plan(step, state, x, num_actors=3)
    assert_close(planned.run(state, x), step(state, x))


def test_closed_over_arrays():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)), jnp.float32)

    def step(accumulate, weight, batch):
        def loss(weight, x):
            hidden = jq.pipeline_yield(jnp.tanh(x @ weight @ table))
            return jnp.sum(hidden @ table) + jnp.sum(weight @ table)

        grads, losses = accumulate(lambda x: jax.value_and_grad(loss)(weight, x)[::-1])(batch)
        return weight - 0.1 * grads @ table, losses, table

    weight, batch = jnp.eye(3), jnp.linspace(-1, 1, 12).reshape(2, 2, 3)
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(2)), weight, batch, num_actors=2)
    assert_close(planned.run(weight, batch), run_oracle(step, weight, batch))
    crossing = {type_ for _, _, type_ in outside_the_loop(planned.program)}
    assert crossing == {"float32[]"}, "every actor has its copy of what was closed over"


def test_a_value_between_loops_goes_from_one_to_the_other():
    """The second loop clips by the norm that the first has found."""

    def step(accumulate, weights, batch):
        def loss(weights, x):
            return jnp.sum(jnp.tanh(jq.pipeline_yield(jnp.tanh(x @ weights[0])) @ weights[1]))

        first = accumulate(lambda x: jax.grad(loss)(weights, x), "sum")(batch)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(grad)) for grad in first))
        second = accumulate(lambda x: jax.grad(loss)([w / norm for w in weights], x), "sum")(batch * 2)
        return [w - 0.1 * g for w, g in zip(weights, second, strict=True)], norm

    weights, batch = [jnp.eye(3), jnp.linspace(-1, 1, 9).reshape(3, 3)], jnp.linspace(-1, 1, 12).reshape(2, 2, 3)
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(2)), weights, batch, num_actors=2)
    assert_close(planned.run(weights, batch), run_oracle(step, weights, batch))
    assert {type_ for _, _, type_ in outside_the_loop(planned.program)} == {"float32[]"}
