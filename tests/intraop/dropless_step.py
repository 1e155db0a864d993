"""A transformer with a dropless mixture of experts in plain JAX: tokens sorted by expert, and `jax.lax.ragged_dot`."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def dropless_step(
    *, layers=2, batch=8, length=16, dim=32, hidden=64, experts=8, chosen=2, heads=4, vocabulary=64, dtype=np.float32
):
    """A training step, and its arguments."""
    random = np.random.default_rng(0)

    def normal(*shape):
        return np.asarray(random.normal(size=shape) * shape[-2] ** -0.5, dtype)

    params = {
        "embedding": normal(vocabulary, dim),
        "layers": [
            {
                "qkv": normal(dim, 3 * dim),
                "out": normal(dim, dim),
                "router": normal(dim, experts),
                "gate": normal(experts, dim, hidden),
                "up": normal(experts, dim, hidden),
                "down": normal(experts, hidden, dim),
            }
            for _ in range(layers)
        ],
    }
    tokens = random.integers(0, vocabulary, (batch, length))
    return make_train_step(heads=heads, chosen=chosen), (params, {"tokens": tokens, "targets": np.roll(tokens, 1)})


def make_train_step(*, heads, chosen):
    def train_step(params, data):
        loss, grads = jax.value_and_grad(_loss)(params, data, heads, chosen)
        return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), loss

    return train_step


def _loss(params, data, heads, chosen):
    x = params["embedding"][data["tokens"]]
    for layer in params["layers"]:
        x = x + _attend(_normalise(x), layer, heads)
        x = x + _mix(_normalise(x), layer, chosen)
    logits = _normalise(x) @ params["embedding"].T
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), data["targets"][..., None], axis=-1)
    return -jnp.mean(picked)


def _normalise(x):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)


def _attend(x, layer, heads):
    batch, length, dim = x.shape
    query, key, value = (
        part.reshape(batch, length, heads, dim // heads) for part in jnp.split(x @ layer["qkv"], 3, axis=-1)
    )
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key) * (dim // heads) ** -0.5)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape) @ layer["out"]


def _mix(x, layer, chosen):
    """Sends each token to its experts: sorted rows meet the weights of their runs, and go back to their places."""
    tokens = x.reshape(-1, x.shape[-1])
    gates, expert = lax.top_k(jax.nn.softmax(tokens @ layer["router"]), chosen)
    order = jnp.argsort(expert.reshape(-1))
    sizes = jnp.bincount(expert.reshape(-1), length=layer["up"].shape[0]).astype(jnp.int32)
    rows = tokens[order // chosen]
    inner = jax.nn.silu(lax.ragged_dot(rows, layer["gate"], sizes)) * lax.ragged_dot(rows, layer["up"], sizes)
    outputs = lax.ragged_dot(inner, layer["down"], sizes)
    unsorted = jnp.zeros_like(outputs).at[order].set(outputs).reshape(*expert.shape, -1)
    return jnp.einsum("tk,tkd->td", gates, unsorted).reshape(x.shape)
