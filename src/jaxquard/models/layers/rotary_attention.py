"""Causal attention of LLAMA: rotary positions, and fewer heads of keys and values than of queries where asked for.

With fewer key heads than query heads, each key and value head is repeated for its group of queries. Rotary positions
turn the two halves of a head against each other, as in Transformers' weights; Meta's pair neighbours, which is the same
model with the columns in another order. Every layer makes its own rotary table, so that all layers are alike and no
stage waits for another's.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxquard.models.layers.attention import Heads, attend, join_heads
from jaxquard.models.layers.parts import Hidden, Params, init_linear, linear
from jaxquard.models.layers.products import Products, project


def init_rotary_attention(
    keys: Sequence[PRNGKeyArray], model_dim: int, *, num_heads: int, num_kv_heads: int, out_scale: float
) -> Params:
    """Query, key, value and out, without biases; a key for each."""
    query_key, key_key, value_key, out_key = keys
    head_dim = model_dim // num_heads
    heads, kv_heads = (num_heads, head_dim), (num_kv_heads, head_dim)
    return {
        "query": init_linear(query_key, (model_dim,), heads, bias=False),
        "key": init_linear(key_key, (model_dim,), kv_heads, bias=False),
        "value": init_linear(value_key, (model_dim,), kv_heads, bias=False),
        "out": init_linear(out_key, heads, (model_dim,), scale=out_scale, bias=False),
    }


def rotary_attention(params: Params, hidden: Hidden, *, rotary_base: float, products: Products | None = None) -> Hidden:
    """Causal self-attention with rotary positions."""
    if products is None:
        query, key, value = (linear(params[name], hidden, "bsd,dhk->bshk") for name in ("query", "key", "value"))
    else:
        query, key, value = _planned_heads(params, hidden, products)
    cosines, sines = _rotary_table(hidden.shape[1], query.shape[-1], rotary_base)
    query, key = _rotate(query, cosines, sines), _rotate(key, cosines, sines)
    group_size = query.shape[2] // key.shape[2]
    if group_size > 1:
        key, value = jnp.repeat(key, group_size, axis=2), jnp.repeat(value, group_size, axis=2)
    attended = attend(query, key, value, causal=True)
    if products is not None:
        return join_heads(params["out"], attended, products)
    return linear(params["out"], attended, "bqhk,hkd->bqd")


def _planned_heads(params: Params, hidden: Hidden, products: Products) -> tuple[Heads, Heads, Heads]:
    """Queries, keys and values of one product, by key heads, each with its group of queries."""
    kernels = {name: params[name]["kernel"] for name in ("query", "key", "value")}
    _, num_heads, head_dim = kernels["query"].shape
    num_kv_heads = kernels["key"].shape[1]
    query = kernels["query"].reshape(-1, num_kv_heads, num_heads // num_kv_heads, head_dim)
    key, value = (kernels[name][:, :, None] for name in ("key", "value"))
    qkv = project(products, "qkv", hidden, jnp.concatenate([query, key, value], axis=2))
    query = qkv[:, :, :, :-2].reshape(*qkv.shape[:2], num_heads, head_dim)
    return query, qkv[:, :, :, -2], qkv[:, :, :, -1]


def _rotary_table(
    length: int, head_dim: int, rotary_base: float
) -> tuple[Float[Array, "sequence 1 half_head"], Float[Array, "sequence 1 half_head"]]:
    """Cosine and sine of the angle of each position and each pair of a head's numbers."""
    shape = (length, 1, head_dim // 2)
    positions = lax.broadcasted_iota(jnp.float32, shape, 0)
    pairs = lax.broadcasted_iota(jnp.float32, shape, 2)
    angles = positions * rotary_base ** (-2 * pairs / head_dim)
    return jnp.cos(angles), jnp.sin(angles)


def _rotate(heads: Heads, cosines: Array, sines: Array) -> Heads:
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    return rotated.astype(heads.dtype)
