"""Steps with values that cross many boundaries: skips over several segments, and a memory for all decoder layers."""

from typing import Any

import jax
import jax.numpy as jnp

from tests.intraop.patterns import attention, norm
from tests.intraop.steps import BATCH, DIM, HEAD_DIM, HEADS, LENGTH, inputs, sgd, weights


def skip_net(depth: int = 3) -> tuple[Any, Any]:
    """A U-net of products: what goes down is joined again on the way up, the last first, in two different ways."""
    wide = 2 * DIM

    def loss(params, batch):
        x, targets = batch
        skips = []
        for number in range(depth):
            x = norm(x + jnp.tanh(x @ params[f"down {number}"]) @ params[f"back {number}"])
            skips.append(x)
        for number in reversed(range(depth)):
            joined = x * jax.nn.sigmoid(skips[number]) if number % 2 else x + skips[number]
            x = norm(x + jnp.tanh(joined @ params[f"up {number}"]) @ params[f"forth {number}"])
        return jnp.mean(jnp.square(x - targets))

    shapes = {}
    for number in range(depth):
        shapes |= {f"{name} {number}": (DIM, wide) for name in ("down", "up")}
        shapes |= {f"{name} {number}": (wide, DIM) for name in ("back", "forth")}
    return sgd(loss), (weights(**shapes), (inputs(64, DIM), inputs(64, DIM, seed=3)))


def decoder_layers(num_layers: int = 2, *, memory_length: int = 2 * LENGTH) -> tuple[Any, Any]:
    """An encoder and a decoder, each of some layers; all layers of the decoder attend to the same memory."""

    def heads(x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:2], HEADS, HEAD_DIM)

    def attend(params, x, memory):
        q, k, v = (heads(of @ params[name]) for name, of in (("q", norm(x)), ("k", memory), ("v", memory)))
        return x + attention(q, k, v).reshape(x.shape) @ params["out"]

    def mlp(params, x):
        return x + jax.nn.gelu(norm(x) @ params["up"]) @ params["down"]

    def loss(params, batch):
        memory, x, targets = batch
        for layer in params["encoder"]:
            memory = mlp(layer["mlp"], attend(layer["attention"], memory, norm(memory)))
        for layer in params["decoder"]:
            x = attend(layer["attention"], x, norm(x))
            x = mlp(layer["mlp"], attend(layer["cross"], x, memory))
        return jnp.mean(jnp.square(x - targets))

    square = (DIM, DIM)
    attending = weights(q=square, k=square, v=square, out=square)
    layer = {"attention": attending, "cross": attending, "mlp": weights(up=(DIM, 4 * DIM), down=(4 * DIM, DIM))}
    encoder = {name: layer[name] for name in ("attention", "mlp")}
    params = {"encoder": [encoder] * num_layers, "decoder": [layer] * num_layers}
    batch = inputs(BATCH, memory_length, DIM), inputs(BATCH, LENGTH, DIM, seed=3), inputs(BATCH, LENGTH, DIM, seed=4)
    return sgd(loss), (params, batch)
