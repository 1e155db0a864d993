"""The routing of tokens to experts: top-2 gating with a capacity (Lepikhin et al. 2020, algorithm 1).

Each group of tokens (here a row of the batch, so that the batch can be partitioned) has `capacity`
places at each expert. Tokens take places in their order, first all first choices, then the second
ones; who finds no place is dropped by that expert, and the residual branch carries it on. The two
weights are normalised to a sum of 1 before that, as in the paper.

The load-balancing loss is the paper's times the square of the number of experts, so that it is 1
under an even load whatever their number.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

Gates = Float[Array, "batch sequence experts"]
Combine = Float[Array, "batch sequence experts capacity"]


def top2_gating(
    logits: Gates, *, capacity: int, second_key: PRNGKeyArray | None = None
) -> tuple[Combine, Float[Array, ""]]:
    """Gives each token's weight at each place of each expert, and the load-balancing loss.

    Args:
        logits: one for each token and expert; float32.
        capacity: places of an expert in each row of the batch.
        second_key: if given, a token goes to its second expert with twice that one's weight as probability;
            a token that does not go takes no place.
    """
    gates = jax.nn.softmax(logits, axis=-1)
    first, second = _top2_masks(gates)
    first_gate, second_gate = jnp.sum(gates * first, axis=-1), jnp.sum(gates * second, axis=-1)
    total = first_gate + second_gate
    first_gate, second_gate = first_gate / total, second_gate / total
    balance_loss = _balance_loss(gates, first)
    if second_key is not None:
        goes = 2 * second_gate > jax.random.uniform(second_key, second_gate.shape)
        second = second * goes[..., None]
    first_count = jnp.sum(first, axis=1, keepdims=True)
    first_places = _places(jnp.cumsum(first, axis=1) - first, first, capacity)
    second_places = _places(jnp.cumsum(second, axis=1) - second + first_count, second, capacity)
    combine = first_gate[..., None, None] * first_places + second_gate[..., None, None] * second_places
    return combine, balance_loss


def _top2_masks(
    gates: Gates,
) -> tuple[Int[Array, "batch sequence experts"], Int[Array, "batch sequence experts"]]:
    num_experts = gates.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(gates, axis=-1), num_experts, dtype=jnp.int32)
    # Below every gate, so that the first choice is not taken again where all other gates are 0.
    rest = jnp.where(first == 1, -1.0, gates)
    return first, jax.nn.one_hot(jnp.argmax(rest, axis=-1), num_experts, dtype=jnp.int32)


def _places(
    positions: Int[Array, "batch sequence experts"], mask: Int[Array, "batch sequence experts"], capacity: int
) -> Combine:
    """1 at the place that each token takes; a position beyond the capacity is no place."""
    position = jnp.sum(positions * mask, axis=-1)
    place = jax.nn.one_hot(position, capacity, dtype=jnp.float32)
    return mask.astype(jnp.float32)[..., None] * place[:, :, None, :]


def _balance_loss(gates: Gates, first: Int[Array, "batch sequence experts"]) -> Float[Array, ""]:
    share = jnp.mean(first.astype(jnp.float32), axis=1)
    return jnp.mean(share * jnp.mean(gates, axis=1)) * gates.shape[-1] ** 2
