"""Sizes of LLAMA-2 and LLAMA-3 models: what was published, how many parameters, how many operations.

Sources: Touvron et al. 2023 (LLAMA 2, table 1 and section 2.2) and Grattafiori et al. 2024 (LLAMA 3, table 3), with the
widths of the released weights. `llama-tiny` is ours, for tests.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxquard.models.configs.config_checks import check_config, check_multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """The shape of a LLAMA.

    Attributes:
        num_kv_heads: heads of keys and values; where fewer than `num_heads`, each serves a group of queries.
        mlp_dim: width of the gate and of the up projection.
        rotary_base: the slowest rotary position turns about once in 2π times this many tokens.
        dtype: what matrix products compute in; parameters are always float32.
        dropout_rate: for both residual branches of a layer; LLAMA itself has none.
    """

    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    model_dim: int
    mlp_dim: int
    sequence_length: int
    rotary_base: float = 10000.0
    dtype: DTypeLike = jnp.bfloat16
    dropout_rate: float = 0.0

    def __post_init__(self):
        check_config(self)
        check_multiple(self, "num_heads", "num_kv_heads", "Choose num_kv_heads so that each serves as many heads.")
        if self.head_dim % 2:
            raise ValueError(
                f"heads of {self.head_dim} (model_dim={self.model_dim} over num_heads={self.num_heads}) cannot turn: "
                "rotary positions need an even number. Choose another num_heads."
            )

    @property
    def head_dim(self) -> int:
        return self.model_dim // self.num_heads


def num_parameters(config: LlamaConfig) -> int:
    """The number of parameters that `llama.init` makes.

    Example:
        >>> f"{jq.models.llama.num_parameters(jq.models.llama.SIZES['llama-2-7b']):,}"
        '6,738,415,616'
    """
    dim = config.model_dim
    return 2 * config.vocab_size * dim + config.num_layers * (_layer_kernels(config) + 2 * dim) + dim


def flops_per_token(config: LlamaConfig) -> int:
    """Operations of the matrix products of one token, forward and backward, nothing recomputed.

    Each product costs 2 operations a weight forward and 4 backward. Attention is counted whole,
    without leaving out what the causal mask hides, as Megatron-LM counts it.

    Example:
        >>> f"{jq.models.llama.flops_per_token(jq.models.llama.SIZES['llama-2-7b']):,}"
        '46,084,915,200'
    """
    attention = 2 * config.sequence_length * config.model_dim
    head = config.vocab_size * config.model_dim
    return 6 * (config.num_layers * (_layer_kernels(config) + attention) + head)


def _layer_kernels(config: LlamaConfig) -> int:
    """Query, out, key and value; gate, up and down."""
    dim = config.model_dim
    return 2 * dim * dim + 2 * dim * config.num_kv_heads * config.head_dim + 3 * dim * config.mlp_dim


def _llama2(num_layers: int, num_heads: int, num_kv_heads: int, model_dim: int, mlp_dim: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=32000,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        model_dim=model_dim,
        mlp_dim=mlp_dim,
        sequence_length=4096,
    )


def _llama3(num_layers: int, num_heads: int, model_dim: int, mlp_dim: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=128256,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=8,
        model_dim=model_dim,
        mlp_dim=mlp_dim,
        sequence_length=8192,
        rotary_base=500_000.0,
    )


SIZES = {
    "llama-tiny": LlamaConfig(
        vocab_size=256,
        num_layers=2,
        num_heads=8,
        num_kv_heads=8,
        model_dim=64,
        mlp_dim=192,
        sequence_length=32,
        dtype=jnp.float32,
    ),
    "llama-2-7b": _llama2(32, 32, 32, 4096, 11008),
    "llama-2-13b": _llama2(40, 40, 40, 5120, 13824),
    "llama-2-70b": _llama2(80, 64, 8, 8192, 28672),
    "llama-3-8b": _llama3(32, 32, 4096, 14336),
    "llama-3-70b": _llama3(80, 64, 8192, 28672),
    "llama-3-405b": _llama3(126, 128, 16384, 53248),
}
