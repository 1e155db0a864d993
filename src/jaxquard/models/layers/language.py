"""Both ends of a language model: learned positions on the way in, token losses on the way out, data."""

from typing import Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxquard.models.layers.parts import Hidden, Microbatch, Params, normal


class SequenceConfig(Protocol):
    """The sizes that making data for a model needs."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def sequence_length(self) -> int: ...


def init_embedding(
    tokens_key: PRNGKeyArray, positions_key: PRNGKeyArray, vocab_size: int, sequence_length: int, model_dim: int
) -> Params:
    """A table of tokens and one of positions."""
    return {
        "tokens": normal(tokens_key, (vocab_size, model_dim)),
        "positions": normal(positions_key, (sequence_length, model_dim)),
    }


def embed(params: Params, tokens: Int[Array, "batch sequence"]) -> Hidden:
    """The rows of the tokens plus those of their positions, in float32."""
    return params["tokens"][tokens] + params["positions"][: tokens.shape[-1]]


def logits_of(hidden: Hidden, table: Float[Array, "vocab model"]) -> Float[Array, "batch sequence vocab"]:
    """The products of the hidden state with every token's row, in float32."""
    return jnp.einsum("bsd,vd->bsv", hidden, table.astype(hidden.dtype), preferred_element_type=jnp.float32)


def token_losses(
    logits: Float[Array, "batch sequence vocab"], targets: Int[Array, "batch sequence"]
) -> Float[Array, "batch sequence"]:
    """The cross entropy of each position's target."""
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - target_logits


def counting_batch(
    key: PRNGKeyArray, config: SequenceConfig, *, num_microbatches: int, microbatch_size: int
) -> Microbatch:
    """Makes sequences that a model can learn: each counts up from a random token in steps of 1 to 4.

    Returns:
        `tokens` and `targets`, the next tokens, of shape (num_microbatches, microbatch_size, sequence_length).
    """
    start_key, stride_key = jax.random.split(key)
    shape = (num_microbatches, microbatch_size, 1)
    start = jax.random.randint(start_key, shape, 0, config.vocab_size)
    stride = jax.random.randint(stride_key, shape, 1, 5)
    sequence = (start + stride * jnp.arange(config.sequence_length + 1)) % config.vocab_size
    return {"tokens": sequence[..., :-1], "targets": sequence[..., 1:]}
