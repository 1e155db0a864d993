"""Smaller models of the same shape: every size of a config divided, in steps that 8 devices can share."""

import dataclasses
from typing import Any

import jax.numpy as jnp

# In multiples of which, and at the minimum, a size is scaled; one that is smaller stays.
_LAYERS, _HEADS, _HEAD_DIM, _WIDTH, _VOCAB, _SEQUENCE, _EXPERTS = 4, 8, 8, 8, 256, 32, 8


def scale_config(config: Any, scale: int) -> Any:
    """Returns the config of a model whose width, layers, heads, vocabulary, sequence and experts are divided.

    Layers stay multiples of 4, heads, experts and widths of 8, with 4 layers and 8 heads or more, so that stages and
    tensor groups on 8 devices divide them. Groups of queries and the ratio of the MLP's width are kept as far as whole
    numbers allow. Products compute in float32.

    Args:
        config: of any model of the zoo.
        scale: 1 or more; 1 changes nothing but the dtype.

    Raises:
        ValueError: if the scale is no whole number of 1 or more.
    """
    if isinstance(scale, bool) or not isinstance(scale, int) or scale < 1:
        raise ValueError(f"scale={scale!r} is no whole number of 1 or more. Give one such as 64.")
    if scale == 1:
        return dataclasses.replace(config, dtype=jnp.float32)
    heads = _scaled(config.num_heads, scale, _HEADS)
    dim = _scaled(config.model_dim, scale, heads * _HEAD_DIM)
    changes: dict[str, Any] = {
        "num_layers": _scaled(config.num_layers, scale, _LAYERS),
        "num_heads": heads,
        "model_dim": dim,
        "vocab_size": _scaled(config.vocab_size, scale, 8, minimum=_VOCAB),
        "sequence_length": _scaled(config.sequence_length, scale, 8, minimum=_SEQUENCE),
        "dtype": jnp.float32,
    }
    names = {field.name for field in dataclasses.fields(config)}
    for name in names & {"mlp_dim", "shared_mlp_dim", "first_mlp_dim"}:
        width = getattr(config, name)
        changes[name] = None if width is None else max(_WIDTH, round(width * dim / config.model_dim / _WIDTH) * _WIDTH)
    if "num_kv_heads" in names:
        changes["num_kv_heads"] = _kv_heads(heads, config.num_heads // config.num_kv_heads)
    if "num_experts" in names:
        changes["num_experts"] = experts = _scaled(config.num_experts, scale, _EXPERTS)
        if "top_k" in names:
            changes["top_k"] = min(config.top_k, max(2, experts // 4))
    return dataclasses.replace(config, **changes)


def _scaled(size: int, scale: int, multiple: int, *, minimum: int = 0) -> int:
    return min(size, max(minimum, multiple, round(size / scale / multiple) * multiple))


def _kv_heads(num_heads: int, group: int) -> int:
    """Keeps groups of queries as large as they were, but two heads of keys or more."""
    largest = max(size for size in range(1, group + 1) if num_heads % size == 0 and (size == 1 or size < num_heads))
    return num_heads // largest
