"""Steps as users write them, each with something that an analysis could trip over."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.intraop.steps import BATCH, DIM, HEAD_DIM, HEADS, LENGTH, inputs, sgd, weights


def norm(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqhk,bshk->bhqs", query, key) * query.shape[-1] ** -0.5
    return jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(scores), value)


def _square_loss(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.mean(jnp.square(outputs - targets))


def _heads(x: jax.Array) -> jax.Array:
    return x.reshape(*x.shape[:2], HEADS, HEAD_DIM)


def _split_minor(qkv: jax.Array) -> tuple[jax.Array, ...]:
    """Queries, keys and values side by side in every channel, as in Alpa's models."""
    qkv = qkv.reshape(*qkv.shape[:2], HEADS, HEAD_DIM, 3)
    return qkv[..., 0], qkv[..., 1], qkv[..., 2]


def _split_per_head(qkv: jax.Array) -> tuple[jax.Array, ...]:
    """Queries, keys and values of a head after each other, as Megatron has them."""
    return tuple(jnp.split(qkv.reshape(*qkv.shape[:2], HEADS, 3 * HEAD_DIM), 3, axis=-1))


def _split_thirds(qkv: jax.Array) -> tuple[jax.Array, ...]:
    """All queries, then all keys, then all values, as in GPT-2's own code."""
    return tuple(_heads(part) for part in jnp.split(qkv, 3, axis=-1))


def fused_layer(split: Callable[[jax.Array], tuple[jax.Array, ...]]) -> tuple[Any, Any]:
    """A transformer layer with one product for queries, keys and values."""

    def loss(params, batch):
        x, targets = batch
        attended = attention(*split(norm(x) @ params["qkv"]))
        x = x + attended.reshape(x.shape) @ params["out"]
        x = x + jax.nn.gelu(norm(x) @ params["up"]) @ params["down"]
        return _square_loss(x, targets)

    params = weights(qkv=(DIM, 3 * DIM), out=(DIM, DIM), up=(DIM, 4 * DIM), down=(4 * DIM, DIM))
    return sgd(loss), (params, (inputs(BATCH, LENGTH, DIM), inputs(BATCH, LENGTH, DIM, seed=3)))


def fused_grouped_queries() -> tuple[Any, Any]:
    """One product for queries, keys and values, with half as many heads of keys: its parts have different sizes."""

    def loss(params, batch):
        x, targets = batch
        q, k, v = jnp.split(norm(x) @ params["qkv"], (DIM, DIM + DIM // 2), axis=-1)
        k, v = (jnp.repeat(part.reshape(*x.shape[:2], HEADS // 2, HEAD_DIM), 2, axis=2) for part in (k, v))
        x = x + attention(_heads(q), k, v).reshape(x.shape) @ params["out"]
        return _square_loss(x + jax.nn.gelu(norm(x) @ params["up"]) @ params["down"], targets)

    params = weights(qkv=(DIM, 2 * DIM), out=(DIM, DIM), up=(DIM, 4 * DIM), down=(4 * DIM, DIM))
    return sgd(loss), (params, (inputs(BATCH, LENGTH, DIM), inputs(BATCH, LENGTH, DIM, seed=3)))


def gptj(num_layers: int = 1) -> tuple[Any, Any]:
    """Attention and MLP side by side, from one norm."""

    def loss(params, batch):
        x, targets = batch
        for layer in params:
            normed = norm(x)
            q, k, v = (_heads(normed @ layer[name]) for name in ("q", "k", "v"))
            attended = attention(q, k, v).reshape(x.shape) @ layer["out"]
            x = x + attended + jax.nn.gelu(normed @ layer["up"]) @ layer["down"]
        return _square_loss(x, targets)

    square = (DIM, DIM)
    layer = weights(q=square, k=square, v=square, out=square, up=(DIM, 4 * DIM), down=(4 * DIM, DIM))
    return sgd(loss), ([layer] * num_layers, (inputs(BATCH, LENGTH, DIM), inputs(BATCH, LENGTH, DIM, seed=3)))


def mlp_net() -> tuple[Any, Any]:
    def loss(params, batch):
        x, targets = batch
        x = jax.nn.relu(x @ params["w1"] + params["b1"])
        x = jax.nn.relu(x @ params["w2"] + params["b2"])
        return _square_loss(x @ params["w3"], targets)

    params = weights(w1=(32, 64), b1=(64,), w2=(64, 64), b2=(64,), w3=(64, 16))
    return sgd(loss), (params, (inputs(16, 32), inputs(16, 16, seed=3)))


def conv_net() -> tuple[Any, Any]:
    def conv(x, w, stride):
        return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(params, batch):
        x, targets = batch
        x = jax.nn.relu(conv(x, params["c1"], 1))
        x = jax.nn.relu(conv(x, params["c2"], 2) + params["b2"])
        return _square_loss(x.mean((1, 2)) @ params["w"], targets)

    params = weights(c1=(3, 3, 8, 16), c2=(3, 3, 16, 32), b2=(32,), w=(32, 16))
    return sgd(loss), (params, (inputs(8, 8, 8, 8), inputs(8, 16, seed=3)))


def swapped_operands() -> tuple[Any, Any]:
    """Weights on the left, and outputs with their dims in another order."""

    def loss(params, batch):
        x, targets = batch
        x = jnp.einsum("md,bsd->mbs", params["w1"], x)
        x = jnp.einsum("mbs,dm->sdb", jnp.tanh(x), params["w2"])
        return _square_loss(x.transpose(2, 0, 1), targets)

    params = weights(w1=(4 * DIM, DIM), w2=(DIM, 4 * DIM))
    return sgd(loss), (params, (inputs(BATCH, LENGTH, DIM), inputs(BATCH, LENGTH, DIM, seed=3)))


def weights_used_twice() -> tuple[Any, Any]:
    def loss(params, batch):
        x, targets = batch
        for _ in range(2):
            x = norm(x + jax.nn.gelu(x @ params["up"]) @ params["down"])
        return _square_loss(x @ params["up"] @ params["up"].T, targets)

    params = weights(up=(DIM, 4 * DIM), down=(4 * DIM, DIM))
    return sgd(loss), (params, (inputs(BATCH, LENGTH, DIM), inputs(BATCH, LENGTH, DIM, seed=3)))


def vmapped_layer() -> tuple[Any, Any]:
    """A model of one example, and a vmap over the batch."""

    def model(params, x):
        for name in ("w1", "w2"):
            x = jax.nn.relu(params[name] @ x)
        return x

    def loss(params, batch):
        x, targets = batch
        return _square_loss(jax.vmap(partial(model, params))(x), targets)

    params = weights(w1=(128, DIM), w2=(DIM, 128))
    return sgd(loss), (params, (inputs(16, DIM), inputs(16, DIM, seed=3)))


def vmapped_weights() -> tuple[Any, Any]:
    """An ensemble: a model for each member, and all of them on the same data."""

    def member(params, x):
        return jnp.tanh(x @ params["w1"]) @ params["w2"]

    def loss(params, batch):
        x, targets = batch
        return _square_loss(jax.vmap(member, in_axes=(0, None))(params, x).mean(0), targets)

    params = weights(w1=(8, 32, 64), w2=(8, 64, 32))
    return sgd(loss), (params, (inputs(16, 32), inputs(16, 32, seed=3)))


def attention_dropout() -> tuple[Any, Any]:
    """Weights of the attention are dropped; the key is data."""

    def loss(params, batch):
        x, targets, key_data = batch
        q, k, v = (_heads(norm(x) @ params[name]) for name in ("q", "k", "v"))
        scores = jax.nn.softmax(jnp.einsum("bqhk,bshk->bhqs", q, k) * HEAD_DIM**-0.5)
        kept = jax.random.bernoulli(jax.random.wrap_key_data(key_data), 0.9, scores.shape)
        attended = jnp.einsum("bhqs,bshk->bqhk", jnp.where(kept, scores / 0.9, 0), v)
        return _square_loss(x + attended.reshape(x.shape) @ params["out"], targets)

    square = (DIM, DIM)
    params = weights(q=square, k=square, v=square, out=square)
    key_data = jax.random.key_data(jax.random.key(5))
    return sgd(loss), (params, (inputs(BATCH, LENGTH, DIM), inputs(BATCH, LENGTH, DIM, seed=3), key_data))


def encoder_decoder() -> tuple[Any, Any]:
    """Cross attention: keys and values come from another sequence."""

    def attend(params, x, memory):
        q = _heads(norm(x) @ params["q"])
        k, v = (_heads(memory @ params[name]) for name in ("k", "v"))
        return x + attention(q, k, v).reshape(x.shape) @ params["out"]

    def loss(params, batch):
        source, x, targets = batch
        memory = attend(params["encoder"], source, norm(source))
        x = attend(params["decoder"], x, norm(x))
        x = attend(params["cross"], x, norm(memory))
        return _square_loss(x, targets)

    square = (DIM, DIM)
    params = {name: weights(q=square, k=square, v=square, out=square) for name in ("encoder", "decoder", "cross")}
    batch = (inputs(BATCH, 2 * LENGTH, DIM), inputs(BATCH, LENGTH, DIM, seed=3), inputs(BATCH, LENGTH, DIM, seed=4))
    return sgd(loss), (params, batch)


def several_outputs() -> tuple[Any, Any]:
    """A loss with metrics beside it, and a state with more than parameters."""

    def loss(params, batch):
        x, targets = batch
        hidden = jax.nn.relu(x @ params["w1"])
        out = hidden @ params["w2"]
        value = _square_loss(out, targets)
        penalty = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params))
        return value + 1e-3 * penalty, {"hidden": hidden, "largest": jnp.max(out), "penalty": penalty}

    def step(state, batch):
        (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], batch)
        params = jax.tree.map(lambda param, grad: param - 0.1 * grad, state["params"], grads)
        return {"params": params, "seen": state["seen"] + 16}, value, metrics

    params = weights(w1=(32, 64), w2=(64, 16))
    return step, ({"params": params, "seen": jnp.int32(0)}, (inputs(16, 32), inputs(16, 16, seed=3)))


def accumulated() -> tuple[Any, Any]:
    """Gradients of microbatches are added up in a scan: no product stands outside of it."""

    def loss(params, batch):
        x, targets = batch
        return _square_loss(jax.nn.relu(x @ params["w1"]) @ params["w2"], targets)

    def step(params, batch):
        def add(total, microbatch):
            value, grads = jax.value_and_grad(loss)(params, microbatch)
            return jax.tree.map(jnp.add, total, grads), value

        grads, values = lax.scan(add, jax.tree.map(jnp.zeros_like, params), batch)
        return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), values.mean()

    params = weights(w1=(32, 64), w2=(64, 16))
    return step, (params, (inputs(4, 16, 32), inputs(4, 16, 16, seed=3)))


def scanned_layers() -> tuple[Any, Any]:
    """Products before and after a scan."""

    def loss(params, batch):
        x, targets = batch
        x, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), jnp.tanh(x @ params["first"]), params["stack"])
        return _square_loss(x @ params["last"], targets)

    params = weights(first=(32, 64), stack=(3, 64, 64), last=(64, 16))
    return sgd(loss), (params, (inputs(16, 32), inputs(16, 16, seed=3)))


def penalised() -> tuple[Any, Any]:
    """The loss has a gradient in it, so the backward has one of its own."""

    def plain(params, batch):
        x, targets = batch
        return _square_loss(jnp.tanh(x @ params["w1"]) @ params["w2"], targets)

    def loss(params, batch):
        grads = jax.grad(plain)(params, batch)
        return plain(params, batch) + sum(jnp.sum(jnp.square(grad)) for grad in jax.tree.leaves(grads))

    return sgd(loss), (weights(w1=(32, 64), w2=(64, 16)), (inputs(16, 32), inputs(16, 16, seed=3)))


def typed_key() -> tuple[Any, Any]:
    """A PRNG key is part of the state, and the step is skipped where the loss is not finite."""

    def loss(params, batch, key):
        x, targets = batch
        hidden = jax.nn.relu(x @ params["w1"])
        return _square_loss(jnp.where(jax.random.bernoulli(key, 0.9, hidden.shape), hidden, 0) @ params["w2"], targets)

    def step(state, batch, rate):
        params, key_data = state
        key, dropout_key = jax.random.split(jax.random.wrap_key_data(key_data))
        value, grads = jax.value_and_grad(loss)(params, batch, dropout_key)
        updated = jax.tree.map(lambda param, grad: param - rate * grad, params, grads)
        kept = lax.cond(jnp.isfinite(value), lambda: updated, lambda: params)
        return (kept, jax.random.key_data(key)), value

    state = weights(w1=(32, 64), w2=(64, 16)), np.array([0, 5], np.uint32)
    return step, (state, (inputs(16, 32), inputs(16, 16, seed=3)), np.float32(0.1))


def new_style_key() -> tuple[Any, Any]:
    """The same with a key that is no plain array."""
    plain, ((params, key_data), batch, rate) = typed_key()

    def step(state, batch, rate):
        (params, key_data), value = plain((state[0], jax.random.key_data(state[1])), batch, rate)
        return (params, jax.random.wrap_key_data(key_data)), value

    return step, ((params, jax.random.wrap_key_data(key_data)), batch, rate)


def mean_of_weights() -> tuple[Any, Any]:
    """A running mean of the weights, which nothing reads but its own update."""
    plain, (params, batch) = mlp_net()

    def step(state, batch):
        params, value = plain(state["params"], batch)
        mean = jax.tree.map(lambda mean, param: 0.9 * mean + 0.1 * param, state["mean"], params)
        return {"params": params, "mean": mean}, value

    return step, ({"params": params, "mean": jax.tree.map(np.zeros_like, params)}, batch)


def frozen_weights() -> tuple[Any, Any]:
    """A first layer that the step closes over and does not train."""
    frozen = inputs(32, 64, seed=7)

    def loss(params, batch):
        x, targets = batch
        return _square_loss(jnp.tanh(jnp.tanh(x @ frozen) @ params["w1"]) @ params["w2"], targets)

    return sgd(loss), (weights(w1=(64, 64), w2=(64, 16)), (inputs(16, 32), inputs(16, 16, seed=3)))


def clipped() -> tuple[Any, Any]:
    """Gradients are clipped by their global norm."""
    plain, args = mlp_net()
    del plain

    def loss(params, batch):
        x, targets = batch
        return _square_loss(jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] @ params["w3"], targets)

    def step(params, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        length = jnp.sqrt(sum(jnp.sum(jnp.square(grad)) for grad in jax.tree.leaves(grads)))
        scale = jnp.minimum(1.0, 0.01 / length)
        return jax.tree.map(lambda param, grad: param - scale * grad, params, grads), value

    return step, args


def mixed_precision() -> tuple[Any, Any]:
    """Computes in bfloat16 with float32 parameters."""

    def loss(params, batch):
        x, targets = batch
        low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        hidden = jax.nn.relu(x.astype(jnp.bfloat16) @ low["w1"])
        return _square_loss((hidden @ low["w2"]).astype(jnp.float32), targets)

    return sgd(loss), (weights(w1=(32, 64), w2=(64, 16)), (inputs(16, 32), inputs(16, 16, seed=3)))


def grouped_queries() -> tuple[Any, Any]:
    """Keys and values have fewer heads than queries."""

    def loss(params, batch):
        x, targets = batch
        q = (norm(x) @ params["q"]).reshape(BATCH, LENGTH, 8, 2, 4)
        k, v = ((norm(x) @ params[name]).reshape(BATCH, LENGTH, 8, 4) for name in ("k", "v"))
        scores = jax.nn.softmax(jnp.einsum("bqhgk,bshk->bhgqs", q, k))
        attended = jnp.einsum("bhgqs,bshk->bqhgk", scores, v)
        return _square_loss(x + attended.reshape(x.shape) @ params["out"], targets)

    params = weights(q=(DIM, DIM), k=(DIM, 32), v=(DIM, 32), out=(DIM, DIM))
    return sgd(loss), (params, (inputs(BATCH, LENGTH, DIM), inputs(BATCH, LENGTH, DIM, seed=3)))


PATTERNS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "queries, keys, values minor": partial(fused_layer, _split_minor),
    "queries, keys, values per head": partial(fused_layer, _split_per_head),
    "queries, keys, values in thirds": partial(fused_layer, _split_thirds),
    "queries, keys, values in unequal parts": fused_grouped_queries,
    "attention beside mlp": gptj,
    "mlp": mlp_net,
    "convolutions": conv_net,
    "swapped operands": swapped_operands,
    "weights used twice": weights_used_twice,
    "vmapped data": vmapped_layer,
    "vmapped weights": vmapped_weights,
    "attention dropout": attention_dropout,
    "cross attention": encoder_decoder,
    "several outputs": several_outputs,
    "scanned layers": scanned_layers,
    "gradient penalty": penalised,
    "key in the state": typed_key,
    "typed key in the state": new_style_key,
    "mean of weights": mean_of_weights,
    "frozen weights": frozen_weights,
    "clipped": clipped,
    "mixed precision": mixed_precision,
    "grouped queries": grouped_queries,
}
