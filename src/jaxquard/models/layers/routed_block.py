"""A transformer block whose MLP is a mixture of experts, spread over a mesh axis by all-to-all (`expert_parallel`)."""

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import PRNGKeyArray

from jaxquard.models.layers.attention import fused_causal_attention, init_fused_attention
from jaxquard.models.layers.expert_parallel import (
    Routing,
    capacity_experts,
    choose_experts,
    dropless_experts,
    init_experts,
    over_axis,
)
from jaxquard.models.layers.parts import Hidden, Params, init_layer_norm, init_linear, layer_norm, linear
from jaxquard.models.layers.top_k_gating import top_k_gating


def init_routed_block(
    key: PRNGKeyArray, *, model_dim: int, num_heads: int, mlp_dim: int, num_experts: int, residual_scale: float
) -> Params:
    """Makes the parameters; the experts are the first dim of `experts`."""
    qkv_key, out_key, router_key, experts_key = jax.random.split(key, 4)
    return {
        "norm_1": init_layer_norm(model_dim),
        "attention": init_fused_attention(qkv_key, out_key, model_dim, num_heads, out_scale=residual_scale),
        "norm_2": init_layer_norm(model_dim),
        "router": init_linear(router_key, (model_dim,), (num_experts,), bias=False),
        "experts": init_experts(
            experts_key, num_experts=num_experts, model_dim=model_dim, mlp_dim=mlp_dim, down_scale=residual_scale
        ),
    }


def routed_block(
    params: Params,
    hidden: Hidden,
    *,
    top_k: int,
    capacity: int | None,
    axis: str | None,
    mesh: Mesh | AbstractMesh | None = None,
) -> tuple[Hidden, Routing]:
    """Applies causal attention, then the experts that each token chooses, both as residual branches.

    Args:
        top_k: experts of a token.
        capacity: places of an expert in each row of the batch; None: no token is dropped.
        axis: the mesh axis that shards experts and rows; None: everything stays on one device.
        mesh: by default that of `jax.set_mesh`; inside a distributed step, the actor's own.

    Returns:
        The hidden state, and the routing with its losses and statistics.
    """
    hidden = hidden + fused_causal_attention(params["attention"], layer_norm(params["norm_1"], hidden))
    normed = layer_norm(params["norm_2"], hidden)
    logits = linear(params["router"], normed.astype(jnp.float32), "bsd,de->bse")
    routing = choose_experts(logits, top_k=top_k)
    if capacity is None:
        run = over_axis(dropless_experts, axis=axis, mesh=mesh)
        return hidden + run(params["experts"], normed, routing.weights, routing.chosen), routing
    combine, _ = top_k_gating(logits, top_k=top_k, capacity=capacity, normalises_gates=True)
    return hidden + over_axis(capacity_experts, axis=axis, mesh=mesh)(params["experts"], normed, combine), routing
