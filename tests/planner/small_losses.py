"""Small losses to plan, and the plain training loop that they are held against."""

import jax
import jax.numpy as jnp
import numpy as np
import optax


def mlp_loss(params, batch):
    x = batch["x"]
    for layer in params["layers"]:
        x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
    return jnp.mean((x @ params["out"] - batch["y"]) ** 2)


def mlp_args(*, num_layers=4, width=16, rows=16):
    rng = np.random.default_rng(0)

    def weight(*shape):
        return (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    layers = [{"up": weight(width, 2 * width), "down": weight(2 * width, width)} for _ in range(num_layers)]
    params = {"layers": layers, "out": weight(width, 8)}
    return params, {"x": weight(rows, width), "y": weight(rows, 8)}


def train_plainly(loss, optimizer, params, batch, *, num_steps):
    """Trains on one device with `jax.jit`; returns the parameters and the losses."""
    params = jax.tree.map(jnp.asarray, params)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    losses = []
    for _ in range(num_steps):
        params, state, value = step(params, state)
        losses.append(float(value))
    return params, losses
