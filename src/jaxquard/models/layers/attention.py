"""Attention over heads, as all models use it: scores and softmax in float32, products in `dtype`."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxquard.models.layers.parts import Hidden, Params, init_linear, linear
from jaxquard.models.layers.products import Products, project

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


def fused_causal_attention(params: Params, hidden: Hidden, *, products: Products | None = None) -> Hidden:
    """Causal self-attention with one product for queries, keys and values, as GPT-2 has it."""
    if products is not None:
        return _planned_attention(params, hidden, products)
    qkv = linear(params["qkv"], hidden, "bsd,dnhk->bsnhk")
    attended = attend(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], causal=True)
    return linear(params["out"], attended, "bqhk,hkd->bqd")


def _planned_attention(params: Params, hidden: Hidden, products: Products) -> Hidden:
    """The same with heads before queries, keys and values, so that each chip splits its own heads."""
    kernel, bias = jnp.swapaxes(params["qkv"]["kernel"], 1, 2), jnp.swapaxes(params["qkv"]["bias"], 0, 1)
    qkv = project(products, "qkv", hidden, kernel, bias)
    attended = attend(*(qkv[:, :, :, part] for part in range(3)), causal=True)
    return join_heads(params["out"], attended, products)


def join_heads(params: Params, attended: Heads, products: Products) -> Hidden:
    """The output map of attention, over all heads at once."""
    kernel = params["kernel"]
    joined = attended.reshape(*attended.shape[:2], -1)
    return project(products, "out", joined, kernel.reshape(-1, kernel.shape[-1]), params.get("bias"))
