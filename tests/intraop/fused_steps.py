"""Layers whose queries, keys and values are parts of one product, taken apart in the ways that public models have."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.intraop.patterns import attention, norm
from tests.intraop.steps import inputs, weights

Heads = tuple[jax.Array, ...]


def _split(qkv: jax.Array, parts: int, heads: int) -> Heads:
    return tuple(part.reshape(*part.shape[:-1], heads, -1) for part in jnp.split(qkv, parts, axis=-1))


def _slices(qkv: jax.Array, parts: int, heads: int) -> Heads:
    size = qkv.shape[-1] // parts
    pieces = (qkv[..., place * size : (place + 1) * size] for place in range(parts))
    return tuple(piece.reshape(*piece.shape[:-1], heads, -1) for piece in pieces)


def _reshape(qkv: jax.Array, parts: int, heads: int) -> Heads:
    apart = qkv.reshape(*qkv.shape[:-1], parts, heads, -1)
    return tuple(apart[..., place, :, :] for place in range(parts))


def _transposed(qkv: jax.Array, parts: int, heads: int) -> Heads:
    """As vision transformers have it."""
    apart = jnp.moveaxis(qkv.reshape(*qkv.shape[:-1], parts, heads, -1), -3, 0)
    return tuple(apart[place] for place in range(parts))


WAYS: dict[str, Callable[[jax.Array, int, int], Heads]] = {
    "split": _split,
    "slices": _slices,
    "reshape": _reshape,
    "transposed": _transposed,
}


def fused_step(
    way: str = "split",
    *,
    num_layers: int = 2,
    batch: int = 8,
    length: int = 4,
    dim: int = 64,
    heads: int = 8,
    bias: bool = True,
    remat: bool = False,
    dtype: Any = jnp.float32,
    halves: bool = False,
) -> tuple[Any, Any]:
    """A training step with momentum, and its arguments; with `halves`, gate and up are of one product as well."""

    def layer(x, params):
        cast = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        qkv = norm(x).astype(dtype) @ cast["qkv"]
        if bias:
            qkv = qkv + cast["qkv_bias"]
        attended = attention(*WAYS[way](qkv, 3, heads))
        x = x + (attended.reshape(x.shape) @ cast["out"]).astype(x.dtype)
        hidden = norm(x).astype(dtype) @ cast["up"]
        if halves:
            gate, up = jnp.split(hidden, 2, axis=-1)
            hidden = jax.nn.silu(gate) * up
        else:
            hidden = jax.nn.gelu(hidden)
        return x + (hidden @ cast["down"]).astype(x.dtype)

    def loss(params, data):
        x, targets = data
        for each in params:
            x = (jax.checkpoint(layer) if remat else layer)(x, each)
        return jnp.mean((x - targets) ** 2)

    def step(state, data):
        params, momentum = state
        value, grads = jax.value_and_grad(loss)(params, data)
        momentum = jax.tree.map(lambda old, grad: 0.9 * old + grad, momentum, grads)
        return (jax.tree.map(lambda param, moved: param - 0.1 * moved, params, momentum), momentum), value

    shapes = {"qkv": (dim, 3 * dim), "out": (dim, dim), "up": (dim, 4 * dim)}
    shapes |= {"down": (2 * dim if halves else 4 * dim, dim)} | ({"qkv_bias": (3 * dim,)} if bias else {})
    params = [weights(**shapes) for _ in range(num_layers)]
    momentum = jax.tree.map(jnp.zeros_like, params)
    return step, ((params, momentum), (inputs(batch, length, dim), inputs(batch, length, dim, seed=3)))
