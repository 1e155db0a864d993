"""Sizes of GShard mixture-of-experts models: what was published, how many parameters and operations.

Source: Alpa's benchmarks (alpa-projects/alpa, benchmark/alpa/suite_manual_moe.py), whose models CFP evaluates on too;
7.1B, which CFP names, stands in later copies of that file only. Every other layer has experts, and every MLP is 8 times
as wide as the model. `moe-tiny` is ours, for tests.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxquard.models.configs.config_checks import check_config


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """The shape of a mixture-of-experts model.

    Attributes:
        mlp_factor: how many times wider than the model an MLP is, an expert's and a dense one.
        capacity_factor: room at the experts for this many times the tokens; each token asks for two places.
        balance_weight: what the load-balancing loss of each layer counts for.
        random_second_expert: with a key, send a token to its second expert with twice that one's weight
            as probability, as GShard does; without, always.
        dtype: what matrix products compute in; parameters and the gates are always float32.
        dropout_rate: for the embeddings and both residual branches of a layer.
    """

    vocab_size: int
    num_layers: int
    num_heads: int
    model_dim: int
    sequence_length: int
    num_experts: int
    mlp_factor: int = 8
    capacity_factor: float = 2.0
    balance_weight: float = 0.01
    random_second_expert: bool = False
    dtype: DTypeLike = jnp.bfloat16
    dropout_rate: float = 0.0

    def __post_init__(self):
        check_config(self)
        if self.num_experts < 2:
            raise ValueError(f"num_experts={self.num_experts}, but each token goes to 2. Choose 2 or more.")
        if self.capacity_factor <= 0:
            raise ValueError(
                f"capacity_factor={self.capacity_factor} leaves no room at the experts. "
                "Choose a positive one; 2 is room for every token if the load is even."
            )

    @property
    def mlp_dim(self) -> int:
        return self.mlp_factor * self.model_dim

    @property
    def num_moe_layers(self) -> int:
        """Layers 0, 2, 4 and so on."""
        return (self.num_layers + 1) // 2

    def has_experts(self, layer: int) -> bool:
        return layer % 2 == 0

    def capacity(self, length: int) -> int:
        """Returns the tokens of a group of `length` that one expert takes."""
        return max(1, int(self.capacity_factor * length / self.num_experts))


def num_parameters(config: MoeConfig) -> int:
    """The number of parameters that `moe.init` makes.

    Example:
        >>> f"{jq.models.moe.num_parameters(jq.models.moe.SIZES['moe-7.1b']):,}"
        '7,068,316,160'
    """
    dim, mlp_dim = config.model_dim, config.mlp_dim
    attention_and_norms = 4 * (dim * dim + dim) + 4 * dim
    dense = 2 * dim * mlp_dim + mlp_dim + dim
    experts = dim * config.num_experts + config.num_experts * 2 * dim * mlp_dim
    embedding = (config.vocab_size + config.sequence_length) * dim
    num_dense_layers = config.num_layers - config.num_moe_layers
    mlps = config.num_moe_layers * experts + num_dense_layers * dense
    return embedding + config.num_layers * attention_and_norms + mlps + 2 * dim


def flops_per_token(config: MoeConfig) -> int:
    """Operations of the matrix products of one token, forward and backward, nothing recomputed.

    Each product costs 2 operations a weight forward and 4 backward, the dispatch only 2, since its
    mask has no gradient. An expert works on all its places, taken or not. The mean over the tokens
    of a sequence, rounded down.

    Example:
        >>> f"{jq.models.moe.flops_per_token(jq.models.moe.SIZES['moe-7.1b']):,}"
        '5,113,118,720'
    """
    dim, mlp_dim, length = config.model_dim, config.mlp_dim, config.sequence_length
    places = config.num_experts * config.capacity(length)
    attention = 4 * dim * dim + 2 * length * dim
    dense = 2 * dim * mlp_dim
    experts = places * 2 * dim * mlp_dim
    num_dense_layers = config.num_layers - config.num_moe_layers
    everywhere = 6 * (config.num_layers * attention + num_dense_layers * dense + config.vocab_size * dim)
    routing = 6 * dim * config.num_experts + (4 + 6) * places * dim
    return everywhere + config.num_moe_layers * (routing + 6 * experts // length)


def _alpa(num_layers: int, model_dim: int, num_experts: int) -> MoeConfig:
    return MoeConfig(
        vocab_size=32000,
        num_layers=num_layers,
        num_heads=16,
        model_dim=model_dim,
        sequence_length=1024,
        num_experts=num_experts,
    )


SIZES = {
    "moe-tiny": MoeConfig(
        vocab_size=256,
        num_layers=2,
        num_heads=8,
        model_dim=64,
        sequence_length=32,
        num_experts=8,
        mlp_factor=4,
        dtype=jnp.float32,
    ),
    "moe-380m": _alpa(8, 768, 8),
    "moe-690m": _alpa(8, 768, 16),
    "moe-1.3b": _alpa(16, 768, 16),
    "moe-2.4b": _alpa(16, 1024, 16),
    "moe-7.1b": _alpa(16, 1280, 32),
    "moe-10b": _alpa(16, 1536, 32),
    "moe-27b": _alpa(16, 2048, 48),
    "moe-70b": _alpa(32, 2048, 64),
    "moe-140b": _alpa(32, 2048, 128),
}
