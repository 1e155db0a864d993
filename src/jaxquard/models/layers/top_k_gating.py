"""The routing of tokens to several experts each, with a capacity: top-2 gating (`top2_gating`) for any number.

Tokens take places at an expert in their order, first all first choices, then the second ones, and so on; who finds no
place is dropped by that expert. Each row of the batch is a group of its own.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxquard.models.layers.top2_gating import Combine, Gates


def top_k_gating(
    logits: Gates, *, top_k: int, capacity: int, normalises_gates: bool
) -> tuple[Combine, Float[Array, ""]]:
    """Gives each token's weight at each place of each expert, and the load-balancing loss.

    Args:
        logits: one for each token and expert; float32.
        top_k: experts of a token.
        capacity: places of an expert in each row of the batch.
        normalises_gates: the weights of a token's experts sum to 1.

    Returns:
        The weights, and a loss that is 1 under an even load whatever the number of experts.
    """
    gates = jax.nn.softmax(logits, axis=-1)
    masks = _choices(gates, top_k)
    chosen = functools.reduce(jnp.add, masks)
    weights = gates * chosen
    if normalises_gates:
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    combine = jnp.zeros((*gates.shape, capacity), jnp.float32)
    taken = jnp.zeros_like(gates[:, :1], dtype=jnp.int32)
    for mask in masks:
        position = jnp.sum((jnp.cumsum(mask, axis=1) - mask + taken) * mask, axis=-1)
        place = jax.nn.one_hot(position, capacity, dtype=jnp.float32)
        combine = combine + (weights * mask)[..., None] * place[:, :, None, :]
        taken = taken + jnp.sum(mask, axis=1, keepdims=True)
    share = jnp.mean(chosen.astype(jnp.float32), axis=1) / top_k
    balance_loss = jnp.mean(share * jnp.mean(gates, axis=1)) * gates.shape[-1] ** 2
    return combine, balance_loss


def _choices(gates: Gates, top_k: int) -> list[Array]:
    """One mask for the first choice of each token, one for the second, and so on."""
    masks = []
    for _ in range(top_k):
        masks.append(jax.nn.one_hot(jnp.argmax(gates, axis=-1), gates.shape[-1], dtype=jnp.int32))
        # Below every gate, so that no choice is taken again.
        gates = jnp.where(masks[-1] == 1, -1.0, gates)
    return masks
