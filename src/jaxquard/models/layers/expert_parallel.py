"""Experts that are spread over a mesh axis: tokens travel to them and back by all-to-all, inside `jax.shard_map`.

Every device has some rows of the batch and some of the experts. Two variants, of the same parameters:

- `capacity_experts`: an expert has places, as in `top_k_gating`; who finds none is dropped.
- `dropless_experts`: none is dropped. Tokens are sorted by expert, and one `jax.lax.ragged_dot` multiplies each run of
  them with its expert. A device sends each other one a block that would hold all of its tokens, so that shapes are
  known on every platform: the exchange is as large as under a capacity that drops nothing.

Both are functions of one device's shards, or, without an axis, of everything on one device; `over_axis` makes them
functions of whole arrays on a mesh. Routing happens before them, on whole arrays: `choose_experts`.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxquard.models.layers.parts import Hidden, Params, normal
from jaxquard.models.layers.top2_gating import Combine, Gates

Weights = Float[Array, "batch sequence choices"]
Chosen = Int[Array, "batch sequence choices"]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["weights", "chosen", "balance_loss", "z_loss", "load"],
    meta_fields=[],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The experts of each token, and the statistics of the router.

    Attributes:
        weights: of each token's experts; they sum to 1.
        chosen: the numbers of these experts.
        balance_loss: 1 under an even load, whatever the number of experts.
        z_loss: the mean square of the log of the router's normaliser, which keeps logits small.
        load: the share of choices that fall on each expert.
    """

    weights: Weights
    chosen: Chosen
    balance_loss: Float[Array, ""]
    z_loss: Float[Array, ""]
    load: Float[Array, " experts"]


def choose_experts(logits: Gates, *, top_k: int) -> Routing:
    """Chooses the `top_k` experts of each token with the highest logits; these are float32."""
    gates = jax.nn.softmax(logits, axis=-1)
    weights, chosen = lax.top_k(gates, top_k)
    num_experts = logits.shape[-1]
    load = jnp.mean(jax.nn.one_hot(chosen, num_experts, dtype=jnp.float32), axis=(0, 1, 2))
    return Routing(
        weights=weights / jnp.sum(weights, axis=-1, keepdims=True),
        chosen=chosen,
        balance_loss=num_experts * jnp.sum(load * jnp.mean(gates, axis=(0, 1))),
        z_loss=jnp.mean(jnp.square(jax.nn.logsumexp(logits, axis=-1))),
        load=load,
    )


def init_experts(key: PRNGKeyArray, *, num_experts: int, model_dim: int, mlp_dim: int, down_scale: float) -> Params:
    """The kernels of MLPs with a GELU, the experts as their first dim."""
    up_key, down_key = jax.random.split(key)
    return {
        "up": normal(up_key, (num_experts, model_dim, mlp_dim)),
        "down": normal(down_key, (num_experts, mlp_dim, model_dim), down_scale),
    }


def over_axis(
    experts: Callable[..., Hidden], *, axis: str | None, mesh: Mesh | AbstractMesh | None = None
) -> Callable[..., Hidden]:
    """Makes one of the variants a function of whole arrays: experts, rows and their routing are sharded over an axis.

    Args:
        axis: None: everything stays on one device.
        mesh: by default that of `jax.set_mesh`; inside a distributed step, the actor's own.
    """
    if axis is None:
        return experts
    sharded = PartitionSpec(axis)
    return jax.shard_map(
        functools.partial(experts, axis=axis), mesh=mesh, in_specs=sharded, out_specs=sharded, axis_names={axis}
    )


def capacity_experts(kernels: Params, hidden: Hidden, combine: Combine, *, axis: str | None = None) -> Hidden:
    """Applies the experts at their places: `combine` has the weight of each token at each place of each expert."""
    dispatch = (combine > 0).astype(hidden.dtype)
    inputs = _exchange(jnp.einsum("bsec,bsd->ebcd", dispatch, hidden), axis, split_dim=0, join_dim=1)
    up = jax.nn.gelu(jnp.einsum("ebcd,edm->ebcm", inputs, kernels["up"].astype(hidden.dtype)))
    outputs = jnp.einsum("ebcm,emd->ebcd", up, kernels["down"].astype(hidden.dtype))
    outputs = _exchange(outputs, axis, split_dim=1, join_dim=0)
    return jnp.einsum("bsec,ebcd->bsd", combine.astype(hidden.dtype), outputs)


def dropless_experts(
    kernels: Params, hidden: Hidden, weights: Weights, chosen: Chosen, *, axis: str | None = None
) -> Hidden:
    """Applies to each token all experts that it chose."""
    num_devices = 1 if axis is None else lax.axis_size(axis)
    num_experts, (*_, num_choices), dim = len(kernels["up"]), chosen.shape, hidden.shape[-1]
    expert = chosen.reshape(-1)
    order = jnp.argsort(expert, stable=True)
    device = expert[order] // num_experts
    place = jnp.arange(expert.size) - jnp.searchsorted(device, device)
    blocks = jnp.zeros((num_devices, expert.size, dim), hidden.dtype)
    blocks = blocks.at[device, place].set(hidden.reshape(-1, dim)[order // num_choices])
    # Places that stay empty belong to an expert after the last one.
    owners = jnp.full((num_devices, expert.size), num_experts).at[device, place].set(expert[order] % num_experts)
    received = _exchange(blocks, axis, split_dim=0, join_dim=0).reshape(-1, dim)
    outputs = _sorted_experts(kernels, received, _exchange(owners, axis, split_dim=0, join_dim=0).reshape(-1))
    returned = _exchange(outputs.reshape(blocks.shape), axis, split_dim=0, join_dim=0)
    mine = jnp.zeros((expert.size, dim), hidden.dtype).at[order].set(returned[device, place])
    return jnp.einsum("bsk,bskd->bsd", weights.astype(hidden.dtype), mine.reshape(*chosen.shape, dim))


def _sorted_experts(
    kernels: Params, tokens: Float[Array, "tokens model"], owners: Int[Array, " tokens"]
) -> Float[Array, "tokens model"]:
    """Applies to each token the expert that owns it; a token without one gets what is never read."""
    num_experts = len(kernels["up"])
    order = jnp.argsort(owners, stable=True)
    sizes = jnp.sum(owners[:, None] == jnp.arange(num_experts), axis=0, dtype=jnp.int32)
    up = jax.nn.gelu(lax.ragged_dot(tokens[order], kernels["up"].astype(tokens.dtype), sizes))
    outputs = lax.ragged_dot(up, kernels["down"].astype(tokens.dtype), sizes)
    return jnp.zeros_like(outputs).at[order].set(outputs)


def _exchange(value: Array, axis: str | None, *, split_dim: int, join_dim: int) -> Array:
    if axis is None:
        return value
    return lax.all_to_all(value, axis, split_dim, join_dim, tiled=True)
