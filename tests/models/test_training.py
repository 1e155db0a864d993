import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxquard.models import gpt, zoo
from jaxquard.models.training import training_step

SMALL = gpt.GptConfig(vocab_size=31, num_layers=1, num_heads=2, model_dim=16, sequence_length=8, dtype=jnp.float32)


class Line:
    """The smallest model that can be trained: a line through points."""

    def init(self, key, config):
        return {"slope": jax.random.normal(key, ()), "offset": jnp.zeros(())}

    def loss(self, params, microbatch, config, *, key=None):
        guesses = params["slope"] * microbatch["x"] + params["offset"]
        if key is not None:
            guesses = guesses * jax.random.bernoulli(key, 0.5, guesses.shape)
        return jnp.mean(jnp.square(guesses - 3 * microbatch["x"] - 2))

    def synthetic_batch(self, key, config, *, num_microbatches, microbatch_size):
        return {"x": jax.random.normal(key, (num_microbatches, microbatch_size))}


LINE = Line()


def run(step, num_steps, seed=0):
    train_step, state = jax.jit(step.train_step), jax.jit(step.init_state)(jax.random.key(seed))
    losses = []
    for _ in range(num_steps):
        state, metrics = train_step(state, step.batch)
        losses.append(float(metrics["loss"]))
    return state, losses


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in ("bert", "llama") else name for name in zoo.MODELS]
)
def test_every_model_learns_its_synthetic_batch(name):
    model = zoo.find_model(f"{name}-tiny")
    step = training_step(model.module, model.config, batch_size=4, learning_rate=3e-3)
    state, losses = run(step, 10)
    assert losses[0] == pytest.approx(np.log(model.config.vocab_size), rel=0.03)
    assert losses[-1] < 0.75 * losses[0]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    # What is never used has no gradient, and would show as an m of 0.
    assert all(leaf.any() for leaf in jax.tree.leaves(state["m"]))
    assert int(state["step"]) == 10


@pytest.mark.parametrize(
    ("name", "optimizer"), [("sgd", optax.sgd(0.1)), ("adam", optax.adam(0.1))], ids=["sgd", "adam"]
)
def test_updates_are_those_of_optax(name, optimizer):
    step = training_step(LINE, SMALL, batch_size=5, learning_rate=0.1, optimizer=name)
    state, losses = run(step, 5)

    params = step.init_state(jax.random.key(0))["params"]
    opt = optimizer.init(params)
    for loss in losses:
        value, grads = jax.value_and_grad(LINE.loss)(params, step.batch, SMALL)
        np.testing.assert_allclose(loss, value, rtol=1e-5)
        updates, opt = optimizer.update(grads, opt, params)
        params = optax.apply_updates(params, updates)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), state["params"], params)


def test_a_state_has_what_its_step_needs():
    def names(config, optimizer):
        step = training_step(gpt, config, optimizer=optimizer)
        return set(jax.eval_shape(step.init_state, jax.random.key(0)))

    random = dataclasses.replace(SMALL, dropout_rate=0.1)
    assert names(SMALL, "sgd") == {"params", "step"}
    assert names(SMALL, "adam") == {"params", "step", "m", "v"}
    assert names(random, "adam") == {"params", "step", "m", "v", "key"}


def test_each_step_drops_something_else_and_a_run_can_be_repeated():
    random = dataclasses.replace(SMALL, dropout_rate=0.5)
    step = training_step(LINE, random, batch_size=20, learning_rate=0.0, optimizer="sgd")
    _, losses = run(step, 3)
    assert len(set(losses)) == 3
    assert run(step, 3)[1] == losses


def test_a_random_second_expert_needs_a_key_in_the_state():
    model = zoo.find_model("moe-tiny")
    config = dataclasses.replace(model.config, random_second_expert=True)
    step = training_step(model.module, config)
    assert "key" in jax.eval_shape(step.init_state, jax.random.key(0))


def test_a_state_is_traced_like_any_other():
    step = training_step(gpt, dataclasses.replace(SMALL, dropout_rate=0.1), batch_size=3)
    state = jax.eval_shape(step.init_state, jax.random.key(0))
    assert all(isinstance(leaf.dtype, np.dtype) for leaf in jax.tree.leaves(state))
    new_state, metrics = jax.eval_shape(step.train_step, state, step.batch)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), new_state) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), state
    )
    assert metrics["loss"].shape == ()
    assert step.batch["tokens"].shape == (3, 8)


@pytest.mark.parametrize("name", zoo.MODELS)
def test_a_batch_of_shapes_has_those_of_the_batch(name):
    model = zoo.find_model(f"{name}-tiny")
    made, shapes = (training_step(model.module, model.config, only_shapes=only).batch for only in (False, True))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in shapes.values())
    assert {key: (leaf.shape, leaf.dtype) for key, leaf in shapes.items()} == {
        key: (leaf.shape, leaf.dtype) for key, leaf in made.items()
    }


def test_an_unknown_optimizer_is_answered_with_the_list():
    with pytest.raises(ValueError, match=r"optimizer='lion' is not known\. Choose one of sgd, adam"):
        training_step(gpt, SMALL, optimizer="lion")
