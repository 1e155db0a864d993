"""The gated MLP of LLAMA (SwiGLU): the product of a gate and an up projection, then down; no biases."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxquard.models.layers.parts import Hidden, Params, init_linear, linear
from jaxquard.models.layers.products import Products, project


def init_gated_mlp(keys: Sequence[PRNGKeyArray], model_dim: int, mlp_dim: int, *, down_scale: float) -> Params:
    """Gate, up and down; a key for each."""
    gate_key, up_key, down_key = keys
    return {
        "gate": init_linear(gate_key, (model_dim,), (mlp_dim,), bias=False),
        "up": init_linear(up_key, (model_dim,), (mlp_dim,), bias=False),
        "down": init_linear(down_key, (mlp_dim,), (model_dim,), scale=down_scale, bias=False),
    }


def gated_mlp(params: Params, hidden: Hidden, *, products: Products | None = None) -> Hidden:
    """The SiLU of the gate times up, then down; by `products` gate and up are one product."""
    if products is not None:
        gate_and_up = jnp.stack([params["gate"]["kernel"], params["up"]["kernel"]], axis=-1)
        both = project(products, "ff1", hidden, gate_and_up)
        return project(products, "ff2", jax.nn.silu(both[..., 0]) * both[..., 1], params["down"]["kernel"])
    gate = jax.nn.silu(linear(params["gate"], hidden, "bsd,dm->bsm"))
    up = linear(params["up"], hidden, "bsd,dm->bsm")
    return linear(params["down"], gate * up, "bsm,md->bsd")
