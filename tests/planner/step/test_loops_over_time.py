"""Stages between two layers that are loops over time: products in front of the loops, marks, and what is said else."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxquard as jq
from jaxquard.errors import PlanError

WIDTH = 16


def lstm(params, xs, *, is_in_front):
    """One layer; the product with its inputs is in the loop, or in front of it for all steps at once."""

    def cell(carry, x):
        memory, hidden = carry
        gates = (x if is_in_front else x @ params["wx"]) + hidden @ params["wh"]
        enter, forget, new, leave = jnp.split(gates, 4, -1)
        memory = jax.nn.sigmoid(forget) * memory + jax.nn.sigmoid(enter) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(leave) * jnp.tanh(memory)
        return (memory, hidden), hidden

    zeros = jnp.zeros((xs.shape[0], WIDTH))
    inputs = jnp.swapaxes(xs @ params["wx"] if is_in_front else xs, 0, 1)
    return jnp.swapaxes(jax.lax.scan(cell, (zeros, zeros), inputs)[1], 0, 1)


LINE = next(
    number
    for number, line in enumerate(inspect.getsource(lstm).splitlines(), inspect.getsourcelines(lstm)[1])
    if "jax.lax.scan" in line
)


def two_layers(*, is_in_front, has_mark=False):
    def loss(params, batch):
        hidden = lstm(params["first"], batch["x"], is_in_front=is_in_front)
        hidden = jq.pipeline_yield(hidden) if has_mark else hidden
        hidden = lstm(params["second"], hidden, is_in_front=is_in_front)
        return jnp.mean((hidden @ params["head"] - batch["y"]) ** 2)

    keys = iter(jax.random.split(jax.random.key(0), 7))

    def normal(*shape):
        return 0.3 * jax.random.normal(next(keys), shape)

    params = {
        "first": {"wx": normal(8, 4 * WIDTH), "wh": normal(WIDTH, 4 * WIDTH)},
        "second": {"wx": normal(WIDTH, 4 * WIDTH), "wh": normal(WIDTH, 4 * WIDTH)},
        "head": normal(WIDTH, 4),
    }
    return loss, params, {"x": normal(16, 6, 8), "y": normal(16, 6, 4)}


def sgd_step(loss, params, batch):
    value, grads = jax.jit(jax.value_and_grad(loss))(params, batch)
    return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), value


def assert_alike(found, wanted):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("has_mark", [False, True])
def test_a_stage_begins_at_the_product_in_front_of_a_loop(has_mark):
    loss, params, batch = two_layers(is_in_front=True, has_mark=has_mark)
    options = {"devices": 2, "num_measured": 0, "cache": None, "fix": {"stages": 2, "microbatches": 4}}
    with jq.parallelize(loss, optax.sgd(0.1), (params, batch), **options) as run:
        state, metrics = run.step(run.init(lambda params: params, params), batch)
        assert run.plan.num_actors == 2
        wanted, value = sgd_step(loss, params, batch)
        assert_alike(state["params"], wanted)
        assert float(metrics["loss"]) == pytest.approx(float(value), rel=1e-5)


@pytest.mark.parametrize("has_mark", [False, True])
def test_without_one_the_loop_is_named(has_mark):
    loss, params, batch = two_layers(is_in_front=False, has_mark=has_mark)
    where = rf"these have theirs inside: `scan` at test_loops_over_time\.py:{LINE}\. Multiply the inputs of all steps"
    with pytest.raises(PlanError, match=rf"^the step can have one stage at most, but 2 were asked for: .* {where}"):
        jq.parallelize(loss, optax.sgd(0.1), (params, batch), devices=2, num_measured=0, fix={"stages": 2})


def test_marks_between_loops_make_stages_by_hand():
    loss, params, batch = two_layers(is_in_front=False, has_mark=True)

    def train_step(params, batch):
        def gradients(microbatch):
            value, grads = jax.value_and_grad(loss)(params, microbatch)
            return grads, value

        grads, values = jq.accumulate_grads(gradients, jq.schedules.OneFOneB(2))(batch)
        return jax.tree.map(lambda param, grad: param - 0.1 * grad / 4, params, grads), values

    microbatches = jax.tree.map(lambda leaf: leaf.reshape(4, 4, *leaf.shape[1:]), batch)
    with jq.RemoteMesh((2,), (1,), ("data",)) as mesh:
        found, values = mesh.distributed(train_step)(params, microbatches)
        wanted, value = sgd_step(loss, params, batch)
        assert_alike(found, wanted)
        assert np.mean(np.asarray(values)) == pytest.approx(float(value), rel=1e-5)
