"""A small training whose state has everything: stacked layers, Adam, a key, a rate."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

import jaxquard as jq

NUM_LAYERS, WIDTH = 4, 4


def init_state(key):
    first, second = jax.random.split(key)
    layers = jax.vmap(lambda k: jax.random.normal(k, (WIDTH, WIDTH)))(jax.random.split(second, NUM_LAYERS))
    params = {"embedding": jax.random.normal(first, (6, WIDTH)), "layers": layers, "head": jnp.ones((WIDTH, 6))}
    return {"params": params, "opt": optax.adam(0.1).init(params), "key": key, "rate": jnp.float32(0.1)}


def make_train_step(num_stages):
    def loss_fn(params, microbatch):
        hidden = params["embedding"][microbatch["tokens"]]
        body = lambda h, kernel: (jnp.tanh(h @ kernel), None)  # noqa: E731
        hidden, _ = jq.pipeline_scan(body, hidden, params["layers"], num_stages=num_stages)
        logits = hidden @ params["head"]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), microbatch["targets"][..., None], axis=-1))

    def train_step(state, batch):
        def microbatch_grads(microbatch):
            value, grads = jax.value_and_grad(loss_fn)(state["params"], microbatch)
            return grads, value

        grads, losses = jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(num_stages))(batch)
        updates, opt = optax.adam(state["rate"]).update(grads, state["opt"], state["params"])
        return {**state, "params": optax.apply_updates(state["params"], updates), "opt": opt}, losses

    return train_step


def distribute(mesh, num_stages):
    """The step on a mesh with an axis `model`; it donates its state."""
    params = {
        "embedding": PartitionSpec(None, "model"),
        "layers": PartitionSpec(None, None, "model"),
        "head": PartitionSpec(),
    }
    shardings = ({"params": params, "opt": None, "key": None, "rate": None}, None)
    return mesh.distributed(make_train_step(num_stages), in_shardings=shardings, donate_argnums=0)


def make_batch():
    tokens = np.random.default_rng(0).integers(0, 6, size=(4, 2, 3))
    return {"tokens": tokens, "targets": (tokens + 1) % 6}


def train(step, state, num_steps):
    """The state and the losses after some steps."""
    losses = []
    for _ in range(num_steps):
        state, loss = step(state, make_batch())
        losses.append(np.asarray(loss))
    return state, losses


def bits(tree):
    """All leaves as bytes, shapes and dtypes, to compare exactly."""

    def of(leaf):
        value = leaf.fetch() if isinstance(leaf, jq.RemoteArray) else leaf
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.asarray(value)
        return array.tobytes(), array.shape, array.dtype

    return jax.tree.map(of, tree)
