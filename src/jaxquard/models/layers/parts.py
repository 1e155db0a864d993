"""Parts that several models share: initial values, linear maps, norms, dropout, the GELU MLP.

Parameters are nested dicts of float32 arrays. Products run in the dtype of their input; norms in
float32. A function here takes numbers, never a config, so that it knows no model.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

Params = dict[str, Any]
Microbatch = dict[str, Array]
Hidden = Float[Array, "batch sequence model"]


def normal(key: PRNGKeyArray, shape: tuple[int, ...], scale: float = 0.02) -> Array:
    """Normal values, by default as small as GPT-2 and BERT begin with."""
    return scale * jax.random.normal(key, shape, jnp.float32)


def init_linear(
    key: PRNGKeyArray, inputs: tuple[int, ...], outputs: tuple[int, ...], *, scale: float = 0.02, bias: bool = True
) -> Params:
    """The kernel of a linear map from dims `inputs` to dims `outputs`, and its bias."""
    params: Params = {"kernel": normal(key, inputs + outputs, scale)}
    return params | {"bias": jnp.zeros(outputs)} if bias else params


def linear(params: Params, inputs: Array, product: str) -> Array:
    """The einsum `product` of inputs and kernel, plus the bias where there is one."""
    outputs = jnp.einsum(product, inputs, params["kernel"].astype(inputs.dtype))
    return outputs + params["bias"].astype(inputs.dtype) if "bias" in params else outputs


def init_layer_norm(model_dim: int) -> Params:
    """A layer norm that changes no scale yet."""
    return {"scale": jnp.ones(model_dim), "bias": jnp.zeros(model_dim)}


def layer_norm(params: Params, hidden: Hidden, *, epsilon: float = 1e-5) -> Hidden:
    """Mean 0 and variance 1 along the last dim, then scale and bias."""
    wide = hidden.astype(jnp.float32)
    centered = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
    normed = centered * lax.rsqrt(variance + epsilon) * params["scale"] + params["bias"]
    return normed.astype(hidden.dtype)


def rms_norm(params: Params, hidden: Hidden, *, epsilon: float = 1e-5) -> Hidden:
    """Mean square 1 along the last dim, then scale."""
    wide = hidden.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * lax.rsqrt(mean_square + epsilon) * params["scale"]).astype(hidden.dtype)


def init_mlp(
    up_key: PRNGKeyArray, down_key: PRNGKeyArray, model_dim: int, mlp_dim: int, *, down_scale: float = 0.02
) -> Params:
    """Two linear maps, up and down; `down_scale` is that of a residual branch's output."""
    return {
        "up": init_linear(up_key, (model_dim,), (mlp_dim,)),
        "down": init_linear(down_key, (mlp_dim,), (model_dim,), scale=down_scale),
    }


def mlp(params: Params, hidden: Hidden, *, activation: Callable[[Array], Array]) -> Hidden:
    """Up, the activation, down."""
    up = linear(params["up"], hidden, "bsd,dm->bsm")
    return linear(params["down"], activation(up), "bsm,md->bsd")


def fold(key: PRNGKeyArray | None, data: int | Array) -> PRNGKeyArray | None:
    """The key of one place among several; without a key, none."""
    return None if key is None else jax.random.fold_in(key, data)


def dropout(values: Array, rate: float, key: PRNGKeyArray | None) -> Array:
    """Drops values at `rate` and scales up the rest; without a key or a rate, all stay."""
    if key is None or not rate:
        return values
    kept = jax.random.bernoulli(key, 1 - rate, values.shape)
    return jnp.where(kept, values / (1 - rate), 0)
