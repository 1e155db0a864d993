"""Common code around a loss: averages, loss scales, penalties, per-example gradients, reshaped batches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxquard as jq
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import is_loop_task, plan, sends, with_schedule
from tests.slow_but_for import slow_but_for

SCHEDULES = [jq.schedules.OneFOneB(2), jq.schedules.ZeroBubbleH1(2)]


def make_weights():
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(rng.normal(size=(3, 3)), jnp.float32) for name in ("first", "second")}


def make_batch(num_microbatches=3):
    return jnp.asarray(np.random.default_rng(1).normal(size=(num_microbatches, 2, 3)), jnp.float32)


def loss_fn(weights, x):
    hidden = jq.pipeline_yield(jnp.tanh(x @ weights["first"]))
    return jnp.mean(jnp.square(hidden @ weights["second"]))


def check(step, state, batch, *, only_scalars=True, has_state=True):
    for schedule in SCHEDULES:
        planned = plan(with_schedule(step, schedule), state, batch, num_actors=2, has_state=has_state)
        assert_close(planned.run(state, batch), run_oracle(step, state, batch))
        if only_scalars:
            outside = {type_ for _, _, type_, before in sends(planned.program) if not is_loop_task(before)}
            assert all(type_.endswith("[]") for type_ in outside), outside
    return planned


def accumulated(accumulate, weights, batch):
    def microbatch_grads(x):
        value, grads = jax.value_and_grad(loss_fn)(weights, x)
        return grads, value

    return accumulate(microbatch_grads)(batch)


def test_averages_of_weights():
    def step(accumulate, state, batch):
        grads, losses = accumulated(accumulate, state["weights"], batch)
        weights = jax.tree.map(lambda w, g: w - 0.1 * g, state["weights"], grads)
        average = jax.tree.map(lambda a, w: 0.9 * a + 0.1 * w, state["average"], weights)
        return {"weights": weights, "average": average}, losses

    weights = make_weights()
    state = {"weights": weights, "average": jax.tree.map(jnp.zeros_like, weights)}
    planned = check(step, state, make_batch())
    held = [{item.arg for item in actor.inputs} for actor in planned.program.actors]
    assert held[0] == {0, 2, 4}, "both leaves of `first`, and the batch"


def test_running_statistics():
    """State of a stage that its forward makes anew, as batch normalisation does."""

    def step(accumulate, state, batch):
        def loss(weights, x):
            hidden = x @ weights["first"]
            mean = jnp.mean(hidden, axis=0)
            hidden = jq.pipeline_yield(jnp.tanh(hidden - mean))
            return jnp.mean(jnp.square(hidden @ weights["second"])), mean

        def microbatch_grads(x):
            (value, mean), grads = jax.value_and_grad(loss, has_aux=True)(state["weights"], x)
            return grads, value, mean

        grads, loss_value, mean = accumulate(microbatch_grads, ("sum", "mean", "mean"))(batch)
        weights = jax.tree.map(lambda w, g: w - 0.1 * g, state["weights"], grads)
        return {"weights": weights, "mean": 0.9 * state["mean"] + 0.1 * mean}, loss_value

    check(step, {"weights": make_weights(), "mean": jnp.zeros(3)}, make_batch())


def test_dynamic_loss_scale():
    def step(accumulate, state, batch):
        def microbatch_grads(x):
            scaled = lambda weights: loss_fn(weights, x) * state["scale"]  # noqa: E731
            value, grads = jax.value_and_grad(scaled)(state["weights"])
            return grads, value

        grads, losses = accumulate(microbatch_grads)(batch)
        grads = jax.tree.map(lambda g: g / state["scale"], grads)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))
        weights = jax.tree.map(lambda w, g: jnp.where(finite, w - 0.1 * g, w), state["weights"], grads)
        scale = jnp.where(finite, state["scale"] * 2, state["scale"] / 2)
        return {"weights": weights, "scale": scale, "bad": state["bad"] + ~finite}, losses

    state = {"weights": make_weights(), "scale": jnp.float32(8), "bad": jnp.int32(0)}
    check(step, state, make_batch())
    check(step, state, make_batch().at[1, 0, 0].set(jnp.nan), only_scalars=False)


OPTIMIZERS = {
    "lion": optax.chain(optax.clip(0.1), optax.lion(0.01)),
    "adafactor": optax.chain(optax.clip_by_block_rms(1.0), optax.adafactor(0.01, min_dim_size_to_factor=2)),
    "lamb": optax.lamb(0.1),
    "multi_transform": optax.multi_transform(
        {"a": optax.sgd(0.1), "b": optax.set_to_zero()}, {"first": "a", "second": "b"}
    ),
    "masked": optax.masked(optax.add_decayed_weights(0.1), {"first": True, "second": False}),
    "MultiSteps": optax.MultiSteps(optax.adam(0.1, eps=0.1), every_k_schedule=2),
    "apply_if_finite": optax.apply_if_finite(optax.sgd(0.1), 3),
    "inject": optax.inject_hyperparams(optax.sgd)(learning_rate=optax.linear_schedule(0.1, 0.0, 5), momentum=0.9),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", slow_but_for(OPTIMIZERS, OPTIMIZERS.keys() - {"lion", "masked", "apply_if_finite"}))
def test_other_optimizers(name):
    optimizer = OPTIMIZERS[name]

    def step(accumulate, state, batch):
        grads, losses = accumulated(accumulate, state["weights"], batch)
        updates, opt = optimizer.update(grads, state["opt"], state["weights"])
        return {"weights": optax.apply_updates(state["weights"], updates), "opt": opt}, losses

    weights = make_weights()
    check(step, {"weights": weights, "opt": optimizer.init(weights)}, make_batch(), only_scalars=False)


def test_normalised_by_the_tokens_of_the_whole_batch():
    def step(accumulate, weights, batch):
        def microbatch_grads(x):
            mask = x[:, :1] > 0

            def loss(weights):
                hidden = jq.pipeline_yield(jnp.tanh(x @ weights["first"]))
                return jnp.sum(jnp.where(mask, jnp.square(hidden @ weights["second"]), 0.0))

            value, grads = jax.value_and_grad(loss)(weights)
            return grads, value, jnp.sum(mask)

        grads, value, count = accumulate(microbatch_grads, ("sum", "sum", "sum"))(batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g / count, weights, grads), value / count

    check(step, make_weights(), make_batch())


def test_batches_made_in_the_step():
    """The batch is reshaped and numbered in the step itself, and its key split."""

    def step(accumulate, weights, batch):
        count = 3
        leaves = {
            "x": batch["x"].reshape(count, -1, 3),
            "number": jnp.arange(count),
            "key": jax.random.split(batch["key"], count),
        }

        def microbatch_grads(microbatch):
            noise = jax.random.normal(microbatch["key"], (3,)) * microbatch["number"]
            value, grads = jax.value_and_grad(loss_fn)(weights, microbatch["x"] + noise)
            return grads, value

        grads, losses = accumulate(microbatch_grads)(leaves)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), losses

    batch = {"x": make_batch().reshape(6, 3), "key": jax.random.key(5)}
    planned = check(step, make_weights(), batch)
    assert not [type_ for _, _, type_, before in sends(planned.program) if not is_loop_task(before)]


def test_per_example_gradients():
    """Marks under `vmap`: each example's gradient is clipped, as differential privacy does."""

    def step(accumulate, weights, batch):
        def microbatch_grads(x):
            one = jax.vmap(lambda row: jax.grad(loss_fn)(weights, row[None]))(x)
            norms = jnp.sqrt(sum(jnp.sum(jnp.square(g), axis=(1, 2)) for g in jax.tree.leaves(one)))
            return jax.tree.map(lambda g: jnp.sum(g / (1 + norms)[:, None, None], axis=0), one)

        grads = accumulate(microbatch_grads)(batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)

    planned = [
        plan(with_schedule(step, schedule), make_weights(), make_batch(), num_actors=2) for schedule in SCHEDULES
    ]
    for found in planned:
        assert_close(found.run(make_weights(), make_batch()), run_oracle(step, make_weights(), make_batch()))


@pytest.mark.parametrize("order", ["forward over reverse", "reverse over reverse"])
def test_second_derivatives(order):
    """A Hessian-vector product, and a penalty on the gradient of the input."""

    def step(accumulate, weights, batch):
        def product(x):
            direction = jax.tree.map(jnp.ones_like, weights)
            return jax.jvp(lambda w: jax.grad(loss_fn)(w, x), (weights,), (direction,))[1]

        def penalty(x):
            def loss(weights):
                return jnp.sum(jnp.square(jax.grad(loss_fn, argnums=1)(weights, x)))

            return jax.grad(loss)(weights)

        return accumulate(product if order.startswith("forward") else penalty)(batch)

    check(step, make_weights(), make_batch(), only_scalars=False, has_state=False)


def test_gradients_of_the_data():
    def step(accumulate, weights, batch):
        return accumulate(lambda x: jax.grad(loss_fn, argnums=1)(weights, x), "stack")(batch)

    check(step, make_weights(), make_batch(), only_scalars=False, has_state=False)


def test_forward_mode_in_the_loop():
    def step(accumulate, weights, batch):
        return accumulate(lambda x: jax.jvp(lambda x: loss_fn(weights, x), (x,), (x * 2,)), "stack")(batch)

    check(step, make_weights(), make_batch(), only_scalars=False, has_state=False)
