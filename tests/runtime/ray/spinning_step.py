"""A training step whose first stage computes for as long as an argument says, so that a test can catch it at work."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import jaxquard as jq

SCHEDULE = jq.schedules.OneFOneB(2)


def _spin(x, num_rounds):
    """Computes for a while, and adds nothing."""
    busy = jax.lax.fori_loop(0, num_rounds, lambda _, y: jnp.sin(y @ y), jnp.full((64, 64), x.mean()))
    return 0.0 * jnp.nan_to_num(busy).mean()


def loss_fn(weights, x, num_rounds):
    hidden = jnp.tanh(x @ weights["first"])
    hidden = hidden + jax.lax.stop_gradient(_spin(jax.lax.stop_gradient(hidden), num_rounds))
    hidden = jq.pipeline_yield(hidden)
    return jnp.mean(jnp.square(hidden @ weights["second"]))


def train_step(weights, batch, num_rounds):
    def microbatch_grads(x):
        value, grads = jax.value_and_grad(loss_fn)(weights, x, num_rounds)
        return grads, value

    grads, losses = jq.accumulate_grads(microbatch_grads, SCHEDULE)(batch)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), jnp.mean(losses)


def compiles_long(x, *, num_rounds):
    """A function that takes long to compile."""
    for number in range(num_rounds):
        x = jnp.sin(x) @ jnp.tanh(x * number + 1)
        x = x / jnp.linalg.norm(x)
    return x


def init(key, width=8):
    return {name: jax.random.normal(key, (width, width)) for name in ("first", "second")}


@functools.cache
def batch(width=8):
    return np.random.default_rng(1).normal(size=(3, 2, width)).astype(np.float32)
