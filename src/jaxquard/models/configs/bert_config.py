"""Sizes of BERT models: what was published, how many parameters, how many operations.

Source: Devlin et al. 2019, section 3, with the vocabulary of the released uncased weights. CFP
evaluates "BERT" and its text names no size. `bert-tiny` is ours, for tests, and not the released
miniature of that name.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxquard.models.configs.config_checks import check_config


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig:
    """The shape of a BERT.

    Attributes:
        num_segments: how many kinds of sentence the segment embedding distinguishes.
        mask_token: what `synthetic_batch` writes over the tokens to be guessed.
        dtype: what matrix products compute in; parameters are always float32.
        dropout_rate: for the embeddings and both residual branches of a layer; 0.1 in the paper.
    """

    vocab_size: int
    num_layers: int
    num_heads: int
    model_dim: int
    sequence_length: int
    num_segments: int = 2
    mask_token: int = 103
    dtype: DTypeLike = jnp.bfloat16
    dropout_rate: float = 0.0

    def __post_init__(self):
        check_config(self)
        if self.mask_token >= self.vocab_size:
            raise ValueError(
                f"mask_token={self.mask_token} is not one of the vocab_size={self.vocab_size} tokens. "
                f"Choose one below {self.vocab_size}."
            )

    @property
    def head_dim(self) -> int:
        return self.model_dim // self.num_heads

    @property
    def mlp_dim(self) -> int:
        return 4 * self.model_dim


def num_parameters(config: BertConfig) -> int:
    """The number of parameters that `bert.init` makes.

    Example:
        >>> f"{jq.models.bert.num_parameters(jq.models.bert.SIZES['bert-base']):,}"
        '109,514,298'
    """
    dim, vocab = config.model_dim, config.vocab_size
    norm = 2 * dim
    embedding = (vocab + config.sequence_length + config.num_segments) * dim + norm
    attention = 4 * (dim * dim + dim) + norm
    mlp = 2 * dim * config.mlp_dim + config.mlp_dim + dim + norm
    head = dim * dim + dim + norm + vocab
    return embedding + config.num_layers * (attention + mlp) + head


def flops_per_token(config: BertConfig) -> int:
    """Operations of the matrix products of one token, forward and backward, nothing recomputed.

    Each product costs 2 operations a weight forward and 4 backward. The head runs on every token.

    Example:
        >>> f"{jq.models.bert.flops_per_token(jq.models.bert.SIZES['bert-base']):,}"
        '710,415,360'
    """
    dim = config.model_dim
    kernels = 4 * dim * dim + 2 * dim * config.mlp_dim
    attention = 2 * config.sequence_length * dim
    head = dim * dim + config.vocab_size * dim
    return 6 * (config.num_layers * (kernels + attention) + head)


def _published(num_layers: int, num_heads: int, model_dim: int) -> BertConfig:
    return BertConfig(
        vocab_size=30522, num_layers=num_layers, num_heads=num_heads, model_dim=model_dim, sequence_length=512
    )


SIZES = {
    "bert-tiny": BertConfig(
        vocab_size=256, num_layers=2, num_heads=8, model_dim=64, sequence_length=32, dtype=jnp.float32
    ),
    "bert-base": _published(12, 12, 768),
    "bert-large": _published(24, 16, 1024),
}
