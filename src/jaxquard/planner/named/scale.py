"""Smaller transformers of the same shape, by the rules of the zoo (`models.scale_config`), whose sizes these are."""

from dataclasses import replace

from jaxquard.errors import PlanError
from jaxquard.pricing.model.transformer import Transformer

# In multiples of which, and at the minimum, a size is scaled; one that is smaller stays.
_LAYERS, _HEADS, _WIDTH, _VOCAB, _SEQUENCE, _EXPERTS = 4, 8, 8, 256, 32, 8


def scale_transformer(transformer: Transformer, scale: int) -> Transformer:
    """Returns a transformer whose width, layers, heads, vocabulary, sequence and experts are divided.

    Raises:
        PlanError: if the scale is no whole number of 1 or more.
    """
    if isinstance(scale, bool) or not isinstance(scale, int) or scale < 1:
        raise PlanError(f"scale must be a whole number of 1 or more, but is {scale!r}.")
    if scale == 1:
        return transformer
    old = transformer
    heads = _scaled(old.num_heads, scale, _HEADS)
    hidden = _scaled(old.hidden, scale, heads * _WIDTH)
    experts = _scaled(old.num_experts, scale, _EXPERTS) if old.num_experts else 0

    def width(size: int) -> int:
        return max(_WIDTH, round(size * hidden / old.hidden / _WIDTH) * _WIDTH) if size else 0

    def of_head(size: int) -> int:
        return max(_WIDTH, round(size * hidden * old.num_heads / heads / old.hidden / _WIDTH) * _WIDTH) if size else 0

    return replace(
        old,
        num_layers=_scaled(old.num_layers, scale, _LAYERS),
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=_kv_heads(heads, old.num_heads // old.num_kv_heads),
        head_dim=of_head(old.head_dim),
        vocab=_scaled(old.vocab, scale, 8, minimum=_VOCAB),
        seq=_scaled(old.seq, scale, 8, minimum=_SEQUENCE),
        ffn=width(old.ffn),
        expert_ffn=width(old.expert_ffn),
        shared_ffn=width(old.shared_ffn),
        num_experts=experts,
        top_k=min(old.top_k, max(2, experts // 4)) if experts else 0,
        num_dense_layers=min(old.num_dense_layers, 1),
        query_rank=width(old.query_rank),
        kv_rank=width(old.kv_rank),
        rope_dim=of_head(old.rope_dim),
    )


def _scaled(size: int, scale: int, multiple: int, *, minimum: int = 0) -> int:
    return min(size, max(minimum, multiple, round(size / scale / multiple) * multiple))


def _kv_heads(num_heads: int, group: int) -> int:
    """Keeps groups of queries as large as they were, but two heads of keys or more."""
    largest = max(size for size in range(1, group + 1) if num_heads % size == 0 and (size == 1 or size < num_heads))
    return num_heads // largest
