"""Random keys: one for each microbatch, and one for each row; and dropout of three frameworks, against plain loops."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxquard as jq
from jaxquard.errors import PlanError

ROWS, FEATURES = 16, 8
KEY = jax.random.key(3)
PLANS = (
    {"microbatches": 4, "stages": 1, "actors": 1},
    {"microbatches": 4, "stages": 2, "actors": 2},
    {"microbatches": 2, "stages": 1, "actors": 1, "recompute": "full"},
)


def make_params():
    keys = jax.random.split(jax.random.key(1), 2)
    return {
        name: jax.random.normal(key, (FEATURES, FEATURES)) / 3 for name, key in zip(("up", "down"), keys, strict=True)
    }


def make_batch():
    return {"x": jax.random.normal(jax.random.key(2), (ROWS, FEATURES)), "keys": jax.random.split(KEY, ROWS)}


def loss_with_key(params, batch, key):
    """Dropout, noise that all rows share, and a part of a layer that is dropped for all rows at once."""
    hidden = jnp.tanh(batch["x"] @ params["up"])
    hidden = jnp.where(jax.random.bernoulli(key, 0.5, hidden.shape), 2 * hidden, 0)
    hidden = hidden + 0.1 * jax.random.normal(jax.random.fold_in(key, 1), (FEATURES,))
    return jnp.mean((hidden @ params["down"] * jax.random.bernoulli(jax.random.fold_in(key, 2), 0.8)) ** 2)


def loss_with_keys_of_rows(params, batch):
    def row(x, key):
        hidden = jnp.tanh(x @ params["up"])
        return jnp.mean((jnp.where(jax.random.bernoulli(key, 0.5, hidden.shape), 2 * hidden, 0) @ params["down"]) ** 2)

    return jnp.mean(jax.vmap(row)(batch["x"], batch["keys"]))


def loop(loss, params, batch, key, num_microbatches):
    """The mean of the losses of microbatches, each with a key of its own; and its gradients."""
    size = ROWS // num_microbatches

    def mean(params):
        found = 0.0
        for number in range(num_microbatches):
            part = jax.tree.map(lambda leaf: leaf[number * size : (number + 1) * size], batch)  # noqa: B023
            found = found + loss(params, part, jax.random.fold_in(key, number)) / num_microbatches
        return found

    return jax.jit(jax.value_and_grad(mean))(params)


def step_under(fix, loss, params, batch, key=None, **options):
    """One step of plain gradient descent with the rate 1: the loss and the gradients."""
    args = jax.eval_shape(lambda: params), jax.eval_shape(lambda: batch)
    with jq.parallelize(loss, optax.sgd(1.0), args, devices=2, num_measured=0, fix=fix, rng=key, **options) as run:
        state, metrics = run.step(run.init(lambda: params), batch, rng=key)
        after = jax.tree.map(np.asarray, state["params"])
        return float(metrics["loss"]), jax.tree.map(lambda old, new: np.asarray(old) - new, params, after)


def assert_same(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6), found[1], expected[1])


@pytest.mark.parametrize("fix", PLANS, ids=str)
def test_each_microbatch_has_a_key_of_its_own(fix):
    params, batch = make_params(), make_batch()
    found = step_under(fix, loss_with_key, params, batch, KEY)
    assert_same(found, loop(loss_with_key, params, batch, KEY, fix["microbatches"]))


def test_a_key_of_each_row_gives_numbers_that_no_plan_changes():
    params, batch = make_params(), make_batch()
    expected = jax.jit(jax.value_and_grad(loss_with_keys_of_rows))(params, batch)
    assert_same(step_under(PLANS[1], loss_with_keys_of_rows, params, batch), expected)


def test_a_key_that_is_missing_or_of_no_use_is_named():
    args = jax.eval_shape(make_params), jax.eval_shape(make_batch)
    fixed = {"devices": 1, "num_measured": 0}
    with jq.parallelize(loss_with_key, optax.sgd(1.0), args, rng=KEY, **fixed) as run:
        state = run.init(make_params)
        with pytest.raises(PlanError, match=r"takes a random key.*run\.step\(state, batch, rng=key\)"):
            run.step(state, make_batch())
    with jq.parallelize(loss_with_keys_of_rows, optax.sgd(1.0), args, **fixed) as run:
        state = run.init(make_params)
        with pytest.raises(PlanError, match=r"planned without a random key.*parallelize\(\.\.\., rng=key\)"):
            run.step(state, make_batch(), rng=KEY)
    with pytest.raises(PlanError, match=r"rng=0 is no random key"):
        jq.parallelize(loss_with_key, optax.sgd(1.0), args, rng=0, **fixed)


def test_a_key_that_is_closed_over_leaves_one_microbatch_and_a_cure():
    args = jax.eval_shape(make_params), jax.eval_shape(make_batch)
    with jq.parallelize(
        lambda params, batch: loss_with_key(params, batch, KEY), optax.sgd(1.0), args, devices=1, num_measured=0
    ) as run:
        assert run.plan.num_microbatches == 1
    assert "draws random numbers for all rows from one key" in run.plan.notes[0]
    assert "pass rng=key to parallelize" in run.plan.notes[0]


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        hidden = nn.Dropout(0.5, deterministic=False)(nn.tanh(nn.Dense(16)(x)))
        return nn.Dropout(0.2, deterministic=False)(nn.Dense(FEATURES)(hidden))


def test_dropout_of_flax_linen():
    params = Linen().init({"params": jax.random.key(0), "dropout": KEY}, jnp.ones((1, FEATURES)))["params"]

    def loss(params, batch, key):
        return jnp.mean(Linen().apply({"params": params}, batch["x"], rngs={"dropout": key}) ** 2)

    found = step_under(PLANS[1], loss, params, make_batch(), KEY)
    assert_same(found, loop(loss, params, make_batch(), KEY, 4))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = nnx.Linear(FEATURES, 16, rngs=rngs), nnx.Linear(16, FEATURES, rngs=rngs)
        self.dropout = nnx.Dropout(0.5)

    def __call__(self, x, rngs):
        return self.down(self.dropout(jnp.tanh(self.up(x)), rngs=rngs))


def test_dropout_of_flax_nnx():
    graph, params = nnx.split(Nnx(nnx.Rngs(0)), nnx.Param)

    def loss(params, batch, key):
        return jnp.mean(nnx.merge(graph, params)(batch["x"], nnx.Rngs(dropout=key)) ** 2)

    found = step_under(PLANS[1], loss, params, make_batch(), KEY)
    assert_same(found, loop(loss, params, make_batch(), KEY, 4))


class Equinox(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.up, self.down = eqx.nn.Linear(FEATURES, 16, key=first), eqx.nn.Linear(16, FEATURES, key=second)
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x, key):
        return self.down(self.dropout(jnp.tanh(self.up(x)), key=key))


def test_dropout_of_equinox():
    """Models of Equinox see one row, so the key of a microbatch is split into those of its rows."""
    params, static = eqx.partition(Equinox(jax.random.key(0)), eqx.is_inexact_array)

    def loss(params, batch, key):
        model = eqx.combine(params, static)
        keys = jax.random.split(key, len(batch["x"]))
        return jnp.mean(jax.vmap(model)(batch["x"], keys) ** 2)

    found = step_under(PLANS[1], loss, params, make_batch(), KEY)
    assert_same(found, loop(loss, params, make_batch(), KEY, 4))
