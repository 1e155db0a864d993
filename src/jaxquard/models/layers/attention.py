"""Attention over heads, as all models use it: scores and softmax in float32, products in `dtype`."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxquard.models.layers.parts import Hidden, Params, init_linear, linear

Heads = Float[Array, "batch sequence heads head"]


def attend(query: Heads, key: Heads, value: Heads, *, causal: bool) -> Heads:
    """Each query's mean of the values, weighted by the softmax of its scaled products with the keys.

    Args:
        causal: a position sees itself and those before it, not those after it.
    """
    length, head_dim = query.shape[1], query.shape[-1]
    scores = jnp.einsum("bqhk,bshk->bhqs", query, key, preferred_element_type=jnp.float32)
    scores = scores * head_dim**-0.5
    if causal:
        positions = [lax.broadcasted_iota(jnp.int32, (length, length), dim) for dim in (0, 1)]
        scores = jnp.where(positions[0] >= positions[1], scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    return jnp.einsum("bhqs,bshk->bqhk", weights, value)


def init_fused_attention(
    qkv_key: PRNGKeyArray, out_key: PRNGKeyArray, model_dim: int, num_heads: int, *, out_scale: float
) -> Params:
    """Attention whose queries, keys and values come of one product, and its output map."""
    head_dim = model_dim // num_heads
    return {
        "qkv": init_linear(qkv_key, (model_dim,), (3, num_heads, head_dim)),
        "out": init_linear(out_key, (num_heads, head_dim), (model_dim,), scale=out_scale),
    }


def fused_causal_attention(params: Params, hidden: Hidden) -> Hidden:
    """Causal self-attention with one product for queries, keys and values, as GPT-2 has it."""
    qkv = linear(params["qkv"], hidden, "bsd,dnhk->bsnhk")
    attended = attend(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], causal=True)
    return linear(params["out"], attended, "bqhk,hkd->bqd")
