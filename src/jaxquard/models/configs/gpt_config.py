"""Sizes of GPT models: what was published, how many parameters, how many operations.

Sources: GPT-2 (Radford et al. 2019, table 2, with the head counts of the released weights) and
GPT-3 (Brown et al. 2020, table 2.1). Two rows of the latter do not multiply out as printed (XL:
24 heads of 128 in 2048; 13B: 5140 wide); they are given as others train them, 16 heads and 5120.
`gpt-2.6b` is the GPT that CFP names, in the shape of Alpa's benchmark of that name
(alpa-projects/alpa, benchmark/alpa/suite_manual_gpt.py). `gpt-1b` is ours: about 1B parameters in
layers that divide among 2, 4, 8 or 16 stages; so is `gpt-tiny`, for tests.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxquard.models.configs.config_checks import check_config


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig:
    """The shape of a GPT.

    Attributes:
        dtype: what matrix products compute in; parameters are always float32.
        tied_embeddings: the head is the token embedding itself, as in GPT-2.
        dropout_rate: for the embeddings and both residual branches of a layer.
    """

    vocab_size: int
    num_layers: int
    num_heads: int
    model_dim: int
    sequence_length: int
    dtype: DTypeLike = jnp.bfloat16
    tied_embeddings: bool = False
    dropout_rate: float = 0.0

    def __post_init__(self):
        check_config(self)

    @property
    def head_dim(self) -> int:
        return self.model_dim // self.num_heads

    @property
    def mlp_dim(self) -> int:
        return 4 * self.model_dim


def num_parameters(config: GptConfig) -> int:
    """The number of parameters that `gpt.init` makes.

    Example:
        >>> f"{jq.models.gpt.num_parameters(jq.models.gpt.SIZES['gpt2-small']):,}"
        '124,439,808'
    """
    dim, vocab = config.model_dim, config.vocab_size
    kernels = 4 * dim * dim + 2 * dim * config.mlp_dim
    biases_and_norms = (3 + 1 + 1 + 4) * dim + config.mlp_dim
    head = 0 if config.tied_embeddings else vocab * dim
    embedding = (vocab + config.sequence_length) * dim
    return embedding + config.num_layers * (kernels + biases_and_norms) + 2 * dim + head


def flops_per_token(config: GptConfig) -> int:
    """Operations of the matrix products of one token, forward and backward, nothing recomputed.

    Each product costs 2 operations a weight forward and 4 backward. Attention is counted whole,
    without leaving out what the causal mask hides, as Megatron-LM counts it.

    Example:
        >>> f"{jq.models.gpt.flops_per_token(jq.models.gpt.SIZES['gpt2-small']):,}"
        '854,438,400'
    """
    dim = config.model_dim
    kernels = 4 * dim * dim + 2 * dim * config.mlp_dim
    attention = 2 * config.sequence_length * dim
    return 6 * (config.num_layers * (kernels + attention) + config.vocab_size * dim)


def _gpt2(num_layers: int, num_heads: int, model_dim: int) -> GptConfig:
    return GptConfig(
        vocab_size=50257,
        num_layers=num_layers,
        num_heads=num_heads,
        model_dim=model_dim,
        sequence_length=1024,
        tied_embeddings=True,
    )


def _gpt3(num_layers: int, num_heads: int, model_dim: int, tied_embeddings: bool = True) -> GptConfig:
    return GptConfig(
        vocab_size=50257,
        num_layers=num_layers,
        num_heads=num_heads,
        model_dim=model_dim,
        sequence_length=2048,
        tied_embeddings=tied_embeddings,
    )


SIZES = {
    "gpt-tiny": GptConfig(
        vocab_size=256, num_layers=2, num_heads=8, model_dim=64, sequence_length=32, dtype=jnp.float32
    ),
    "gpt2-small": _gpt2(12, 12, 768),
    "gpt2-medium": _gpt2(24, 16, 1024),
    "gpt2-large": _gpt2(36, 20, 1280),
    "gpt2-xl": _gpt2(48, 25, 1600),
    "gpt-1b": _gpt3(16, 16, 2048, tied_embeddings=False),
    "gpt-2.6b": GptConfig(
        vocab_size=51200, num_layers=32, num_heads=32, model_dim=2560, sequence_length=1024, tied_embeddings=True
    ),
    "gpt3-125m": _gpt3(12, 12, 768),
    "gpt3-350m": _gpt3(24, 16, 1024),
    "gpt3-760m": _gpt3(24, 16, 1536),
    "gpt3-1.3b": _gpt3(24, 16, 2048),
    "gpt3-2.7b": _gpt3(32, 32, 2560),
    "gpt3-6.7b": _gpt3(32, 32, 4096),
    "gpt3-13b": _gpt3(40, 40, 5120),
    "gpt3-175b": _gpt3(96, 96, 12288),
}
