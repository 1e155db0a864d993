"""A decoder-only transformer by its sizes: parameters, and the FLOPs that its training step is said to have.

Parameters of one layer, with h hidden, q and kv the widths of queries and of keys or values, f the width of the MLP,
m = 3 matrices of a gated MLP (SwiGLU) or m = 2 of a plain one:

    attention    2 h q + 2 h kv
    MLP          m h f, once for each expert
    norms        2 h, twice that with biases

Publications count FLOPs in ways that differ by up to a factor of 2 in long sequences: attention as if all pairs of
tokens were computed (Megatron, MosaicML), or the causal half of them (MaxText); with recomputation or without.
"""

from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from jaxquard.errors import StepPriceError

_OPTIONAL_COUNTS = (
    "num_kv_heads",
    "head_dim",
    "ffn",
    "num_experts",
    "top_k",
    "expert_ffn",
    "shared_ffn",
    "expert_hosts",
    "num_dense_layers",
    "query_rank",
    "kv_rank",
    "rope_dim",
)


def check_count(value: Any, name: str, *, minimum: int = 0) -> None:
    """Raises a StepPriceError unless it is a whole number of at least a minimum."""
    is_whole = isinstance(value, Real) and not isinstance(value, bool) and float(value).is_integer()
    if not is_whole or value < minimum:
        raise StepPriceError(f"{name} must be a whole number of {minimum} or more, but is {value!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A decoder-only transformer, dense or with experts.

    Attributes:
        num_kv_heads: of grouped-query attention; 0: as many as there are heads.
        head_dim: of queries and keys; 0: hidden / num_heads.
        ffn: width of the MLP; 0: 4 times hidden.
        is_gated: the MLP has a gate (SwiGLU), so 3 matrices.
        num_experts: of each MoE layer; 0: the MLPs are dense.
        top_k: experts that a token visits.
        expert_ffn: width of an expert; 0: `ffn`.
        shared_ffn: total width of the experts that every token visits.
        expert_hosts: hosts that a token's experts are on at most, where routing has such a limit; 0: none.
        num_dense_layers: layers of an MoE model that have a dense MLP of width `ffn`.
        query_rank: of low-rank queries (multi-head latent attention); 0: one whole matrix.
        kv_rank: the same of keys and values.
        rope_dim: the part of `head_dim` that carries positions in latent attention; values do not have it.
        is_tied: input and output embeddings are one matrix.
        has_learned_positions: positions have an embedding, with `seq` rows.
        has_biases: products and norms have biases.

    Example:
        >>> gpt3 = jq.pricing.Transformer(num_layers=96, hidden=12288, num_heads=96, vocab=51200, seq=2048)
        >>> f"{gpt3.num_parameters / 1e9:.1f} billion"
        '174.6 billion'
    """

    num_layers: int
    hidden: int
    num_heads: int
    vocab: int
    seq: int
    num_kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    is_gated: bool = False
    num_experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    expert_hosts: int = 0
    num_dense_layers: int = 0
    query_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    is_tied: bool = True
    has_learned_positions: bool = True
    has_biases: bool = True
    # Widths that follow from the fields above, computed once: a price reads them many times.
    query_width: int = field(init=False, repr=False)
    kv_width: int = field(init=False, repr=False)
    num_mlp_matrices: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden", "num_heads", "vocab", "seq"):
            check_count(getattr(self, name), name, minimum=1)
        for name in _OPTIONAL_COUNTS:
            check_count(getattr(self, name), name)
        defaults = {
            "num_kv_heads": self.num_kv_heads or self.num_heads,
            "head_dim": self.head_dim or max(1, self.hidden // self.num_heads),
            "ffn": self.ffn or 4 * self.hidden,
        }
        defaults["expert_ffn"] = self.expert_ffn or defaults["ffn"]
        defaults["query_width"] = self.num_heads * defaults["head_dim"]
        defaults["kv_width"] = defaults["num_kv_heads"] * defaults["head_dim"]
        defaults["num_mlp_matrices"] = 3 if self.is_gated else 2
        for name, value in defaults.items():
            object.__setattr__(self, name, value)
        if self.num_dense_layers > self.num_layers:
            raise StepPriceError(
                f"num_dense_layers is {self.num_dense_layers}, but there are {self.num_layers} layers. Give at most "
                "as many."
            )
        if self.num_experts and not 1 <= self.top_k <= self.num_experts:
            raise StepPriceError(
                f"a token visits top_k={self.top_k} of {self.num_experts} experts. Give a top_k between 1 and "
                f"{self.num_experts}."
            )

    @property
    def num_moe_layers(self) -> int:
        """Layers whose MLP is a set of experts."""
        return self.num_layers - self.num_dense_layers if self.num_experts else 0

    @property
    def value_dim(self) -> int:
        """The width of one head's values."""
        return self.head_dim - self.rope_dim

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention products."""
        if not self.kv_rank:
            return 2 * self.hidden * (self.query_width + self.kv_width)
        heads, value = self.num_heads, self.value_dim
        queries = self.hidden * self.query_width
        if self.query_rank:
            queries = self.query_rank * (self.hidden + self.query_width)
        # Keys without their positions are as wide as values.
        keys_and_values = self.hidden * (self.kv_rank + self.rope_dim) + self.kv_rank * heads * 2 * value
        return queries + keys_and_values + heads * value * self.hidden

    @property
    def dense_mlp_parameters(self) -> int:
        """Parameters of a dense layer's MLP."""
        return self.num_mlp_matrices * self.hidden * self.ffn

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert."""
        return self.num_mlp_matrices * self.hidden * self.expert_ffn

    @property
    def shared_parameters(self) -> int:
        """Parameters of an MoE layer that every token uses: the shared experts and the router."""
        return self.num_mlp_matrices * self.hidden * self.shared_ffn + self.hidden * self.num_experts

    @property
    def norm_parameters(self) -> int:
        """Parameters of one layer that are no product: the norms, and the biases."""
        if not self.has_biases:
            return 2 * self.hidden
        biases = self.query_width + 2 * self.kv_width + 2 * self.hidden + self.ffn * (self.num_mlp_matrices - 1)
        return 4 * self.hidden + biases

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding, with that of positions."""
        return self.hidden * (self.vocab + (self.seq if self.has_learned_positions else 0))

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        moe, dense = self.num_moe_layers, self.num_layers - self.num_moe_layers
        layers = self.num_layers * (self.attention_parameters + self.norm_parameters)
        layers += dense * self.dense_mlp_parameters
        layers += moe * (self.num_experts * self.expert_parameters + self.shared_parameters)
        output = 0 if self.is_tied else self.hidden * self.vocab
        return layers + self.embedding_parameters + output + self.hidden * (2 if self.has_biases else 1)

    @property
    def active_parameters(self) -> int:
        """Parameters of the products that a token goes through, the output embedding among them."""
        moe, dense = self.num_moe_layers, self.num_layers - self.num_moe_layers
        layers = self.num_layers * self.attention_parameters + dense * self.dense_mlp_parameters
        layers += moe * (self.top_k * self.expert_parameters + self.shared_parameters)
        return layers + self.hidden * self.vocab

    def attention_flops_per_token(self, *, is_causal: bool) -> float:
        """Returns the FLOPs of scores and of weighted values, forward, of one layer and one token."""
        pairs = self.seq / 2 if is_causal else self.seq
        return 2 * pairs * self.num_heads * (self.head_dim + self.value_dim)

    def flops_per_token(self, *, is_causal: bool = False, has_recomputation: bool = False) -> float:
        """Returns the FLOPs of a training step for one token, as publications count them.

        Args:
            is_causal: count only the pairs of tokens that a causal mask leaves.
            has_recomputation: count one more forward pass, as hardware FLOPs do.

        Example:
            >>> gpt = jq.pricing.Transformer(num_layers=96, hidden=12288, num_heads=96, vocab=51200, seq=2048)
            >>> f"{gpt.flops_per_token() / 6 / gpt.num_parameters:.2f} of 6 N"
            '1.03 of 6 N'
        """
        attention = self.num_layers * self.attention_flops_per_token(is_causal=is_causal)
        return (4 if has_recomputation else 3) * (2 * self.active_parameters + attention)
