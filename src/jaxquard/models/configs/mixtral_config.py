"""Sizes of LLAMA-like mixtures of experts: what was published, how many parameters, how many operations.

Sources: Mixtral 8x7B (Jiang et al. 2024, table 1, and the released config.json) on sequences of 4096, as others train
it (32768 was published); DeepSeekMoE 16B (Dai et al. 2024, table 1, and the released config.json of
deepseek-moe-16b-base): 64 experts of which a token visits 6, two shared ones as one MLP, and a dense first layer.
`mixtral-tiny` is ours, for tests.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxquard.models.configs.config_checks import check_config, check_multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtralConfig:
    """The shape of a LLAMA-like mixture of experts.

    Attributes:
        num_kv_heads: heads of keys and values; where fewer than `num_heads`, each serves a group of queries.
        mlp_dim: width of an expert's gate and up projection.
        top_k: experts that a token visits.
        shared_mlp_dim: width of the MLP that every token visits besides; None: there is none.
        first_mlp_dim: width of the dense MLP that the first layer has; None: it has experts as all others.
        normalises_gates: the weights of a token's experts sum to 1.
        capacity_factor: room at the experts for this many times the tokens, if the load is even.
        balance_weight: what the load-balancing loss of each layer counts for.
        dtype: what matrix products compute in; parameters and the gates are always float32.
        dropout_rate: for both residual branches of a layer.
    """

    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    model_dim: int
    mlp_dim: int
    sequence_length: int
    num_experts: int
    top_k: int
    shared_mlp_dim: int | None = None
    first_mlp_dim: int | None = None
    normalises_gates: bool = True
    capacity_factor: float = 1.25
    balance_weight: float = 0.02
    rotary_base: float = 1e6
    dtype: DTypeLike = jnp.bfloat16
    dropout_rate: float = 0.0

    def __post_init__(self):
        check_config(self)
        check_multiple(self, "num_heads", "num_kv_heads", "Choose num_kv_heads so that each serves as many heads.")
        if self.top_k > self.num_experts:
            raise ValueError(
                f"a token visits top_k={self.top_k} experts, but there are {self.num_experts}. Choose at most as many."
            )
        if self.capacity_factor <= 0:
            raise ValueError(
                f"capacity_factor={self.capacity_factor} leaves no room at the experts. "
                "Choose a positive one; 1 is room for every token if the load is even."
            )

    @property
    def head_dim(self) -> int:
        return self.model_dim // self.num_heads

    @property
    def num_moe_layers(self) -> int:
        """Layers that have experts."""
        return self.num_layers - (self.first_mlp_dim is not None)

    def has_experts(self, layer: int) -> bool:
        return layer > 0 or self.first_mlp_dim is None

    def capacity(self, length: int) -> int:
        """Returns the tokens of a group of `length` that one expert takes."""
        return max(1, int(self.capacity_factor * self.top_k * length / self.num_experts))


def num_parameters(config: MixtralConfig) -> int:
    """The number of parameters that `mixtral.init` makes.

    Example:
        >>> f"{jq.models.mixtral.num_parameters(jq.models.mixtral.SIZES['mixtral-8x7b']):,}"
        '46,702,792,704'
    """
    dim = config.model_dim
    experts = dim * config.num_experts + config.num_experts * 3 * dim * config.mlp_dim
    experts += 3 * dim * (config.shared_mlp_dim or 0)
    layers = config.num_layers * (_attention_kernels(config) + 2 * dim)
    layers += config.num_moe_layers * experts + 3 * dim * (config.first_mlp_dim or 0)
    return 2 * config.vocab_size * dim + layers + dim


def flops_per_token(config: MixtralConfig) -> int:
    """Operations of the matrix products of one token, forward and backward, nothing recomputed.

    Each product costs 2 operations a weight forward and 4 backward, the dispatch only 2, since its mask has no
    gradient. An expert works on all its places, taken or not. The mean over the tokens of a sequence, rounded down.

    Example:
        >>> f"{jq.models.mixtral.flops_per_token(jq.models.mixtral.SIZES['mixtral-8x7b']):,}"
        '113,267,179,520'
    """
    dim, length = config.model_dim, config.sequence_length
    places = config.num_experts * config.capacity(length)
    attention = _attention_kernels(config) + 2 * length * dim
    everywhere = config.num_layers * attention + config.vocab_size * dim
    everywhere += 3 * dim * (config.first_mlp_dim or 0)
    everywhere += config.num_moe_layers * (3 * dim * (config.shared_mlp_dim or 0) + dim * config.num_experts)
    routing = (4 + 6) * places * dim
    return 6 * everywhere + config.num_moe_layers * (routing + 6 * places * 3 * dim * config.mlp_dim // length)


def _attention_kernels(config: MixtralConfig) -> int:
    """Query, out, key and value."""
    return 2 * config.model_dim * config.head_dim * (config.num_heads + config.num_kv_heads)


SIZES = {
    "mixtral-tiny": MixtralConfig(
        vocab_size=256,
        num_layers=2,
        num_heads=8,
        num_kv_heads=8,
        model_dim=64,
        mlp_dim=128,
        sequence_length=32,
        num_experts=8,
        top_k=2,
        dtype=jnp.float32,
    ),
    "mixtral-8x7b": MixtralConfig(
        vocab_size=32000,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        model_dim=4096,
        mlp_dim=14336,
        sequence_length=4096,
        num_experts=8,
        top_k=2,
    ),
    "deepseek-16b": MixtralConfig(
        vocab_size=102400,
        num_layers=28,
        num_heads=16,
        num_kv_heads=16,
        model_dim=2048,
        mlp_dim=1408,
        sequence_length=4096,
        num_experts=64,
        top_k=6,
        shared_mlp_dim=2816,
        first_mlp_dim=10944,
        normalises_gates=False,
        balance_weight=0.001,
        rotary_base=1e4,
    ),
}
