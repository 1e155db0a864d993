"""Shared by the tests of the frameworks: a tiny language-modelling task, and two steps against the oracle."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxquard as jq
from tests.pipeline.oracle import assert_close

VOCAB, WIDTH, HEADS, LENGTH = 11, 8, 2, 5


def make_batch(num_microbatches: int = 3, size: int = 2) -> dict[str, np.ndarray]:
    start = np.random.default_rng(0).integers(0, VOCAB, size=(num_microbatches, size, 1))
    tokens = (start + 3 * np.arange(LENGTH + 1)) % VOCAB
    return {"tokens": tokens[..., :-1], "targets": tokens[..., 1:]}


def cross_entropy(logits: Any, targets: Any) -> Any:
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)
    return -jnp.mean(picked)


def train(loss_fn: Callable[[Any, Any], Any], params: Any, schedule: jq.schedules.Schedule) -> tuple[Any, list[Any]]:
    """Two steps on actors: the training step is the one that `jax.jit` would take."""
    optimizer = make_optimizer()

    def train_step(state, batch):
        def microbatch_grads(microbatch):
            value, grads = jax.value_and_grad(loss_fn)(state["params"], microbatch)
            return grads, value

        grads, losses = jq.accumulate_grads(microbatch_grads, schedule)(batch)
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, losses

    with jq.RemoteMesh((schedule.num_actors,)) as mesh:
        step = mesh.distributed(train_step, donate_argnums=0)
        state, history = {"params": params, "opt": jax.jit(optimizer.init)(params)}, []
        for _ in range(2):
            state, losses = step(state, make_batch())
            history.append(np.asarray(losses))
        jax.block_until_ready(state)
    return state, history


def expect(loss_fn: Callable[[Any, Any], Any], params: Any) -> tuple[Any, list[Any]]:
    """The oracle: a Python loop over the microbatches."""
    optimizer = make_optimizer()
    value_and_grad = jax.jit(jax.value_and_grad(loss_fn))

    @jax.jit
    def update(params, opt, *grads):
        updates, opt = optimizer.update(jax.tree.map(lambda *terms: sum(terms), *grads), opt, params)
        return optax.apply_updates(params, updates), opt

    opt, history, batch = jax.jit(optimizer.init)(params), [], make_batch()
    for _ in range(2):
        found = [
            value_and_grad(params, {name: leaf[index] for name, leaf in batch.items()})
            for index in range(len(batch["tokens"]))
        ]
        params, opt = update(params, opt, *(grad for _, grad in found))
        history.append(np.array([value for value, _ in found]))
    return params, history


def make_optimizer() -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1, eps=0.1))


def check_two_steps(loss_fn: Callable[[Any, Any], Any], params: Any, schedule: jq.schedules.Schedule) -> Any:
    """Losses and parameters after two steps are the oracle's. Returns the last state on the actors."""
    state, losses = train(loss_fn, params, schedule)
    expected_params, expected_losses = expect(loss_fn, params)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    found = jax.tree.map(jnp.asarray, jax.device_get(state["params"]))
    assert_close(found, expected_params, absolute=1e-6)
    return state
