"""A BERT in plain JAX: post-norm layers, attention in both directions, masked tokens guessed.

Queries, keys and values have a product each, three contractions that share an input. The head is
the released one: a transform layer, then the token embedding with its own bias.

Departures from Devlin et al. 2019: no next-sentence loss (and so no pooler), no padding, no
dropout of attention weights, and the head runs on every position, as in Alpa's benchmark, where
the original gathers the masked ones first. Parameters, dtypes and marks are as in `gpt`.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxquard.models.configs.bert_config import SIZES as SIZES
from jaxquard.models.configs.bert_config import BertConfig as BertConfig
from jaxquard.models.configs.bert_config import flops_per_token as flops_per_token
from jaxquard.models.configs.bert_config import num_parameters as num_parameters
from jaxquard.models.layers.attention import attend
from jaxquard.models.layers.language import counting_batch, embed, init_embedding, logits_of, token_losses
from jaxquard.models.layers.parts import (
    Hidden,
    Microbatch,
    Params,
    dropout,
    fold,
    init_layer_norm,
    init_linear,
    init_mlp,
    layer_norm,
    linear,
    mlp,
    normal,
)
from jaxquard.models.layers.stages import Mark, Remat, no_mark, run_layers

MASKED_FRACTION = 0.15

_norm = functools.partial(layer_norm, epsilon=1e-12)


def init(key: PRNGKeyArray, config: BertConfig) -> Params:
    """Makes parameters as BERT does: normal(0.02), biases 0, norms 1.

    Example:
        >>> config = jq.models.bert.SIZES["bert-tiny"]
        >>> shapes = jax.eval_shape(lambda key: jq.models.bert.init(key, config), jax.random.key(0))
        >>> len(shapes["layers"])
        2
    """
    tokens_key, positions_key, segments_key, transform_key, layers_key = jax.random.split(key, 5)
    dim = config.model_dim
    tables = init_embedding(tokens_key, positions_key, config.vocab_size, config.sequence_length, dim)
    return {
        "embedding": tables | {"segments": normal(segments_key, (config.num_segments, dim))},
        "embedding_norm": init_layer_norm(dim),
        "layers": [_init_layer(jax.random.fold_in(layers_key, layer), config) for layer in range(config.num_layers)],
        "transform": init_linear(transform_key, (dim,), (dim,)),
        "transform_norm": init_layer_norm(dim),
        "head_bias": jnp.zeros(config.vocab_size),
    }


def loss(
    params: Params,
    microbatch: Microbatch,
    config: BertConfig,
    *,
    mark: Mark = no_mark,
    num_stages: int = 1,
    remat: Remat = False,
    key: PRNGKeyArray | None = None,
) -> Float[Array, ""]:
    """The mean cross entropy of `microbatch["targets"]` where `microbatch["masked"]` is 1.

    The arguments are those of `gpt.loss`, without `products`; a microbatch has `tokens`, `segments`, `targets` and
    `masked`, all integers of shape (batch, sequence).

    Example:
        >>> config = jq.models.bert.SIZES["bert-tiny"]
        >>> made = jq.models.zoo.training_step(jq.models.bert, config, only_shapes=True)
        >>> params = jax.eval_shape(made.init_state, jax.random.key(0))["params"]
        >>> jax.eval_shape(lambda params, batch: jq.models.bert.loss(params, batch, config), params, made.batch).shape
        ()
    """
    hidden = _embed(params, microbatch, config, key)
    hidden = run_layers(
        _layer_of(config), params["layers"], hidden, mark=mark, num_stages=num_stages, remat=remat, key=key
    )
    return _head_loss(params, hidden, microbatch)


def synthetic_batch(
    key: PRNGKeyArray, config: BertConfig, *, num_microbatches: int, microbatch_size: int
) -> Microbatch:
    """Makes sequences that count up in steps of 1 to 4, each with the same number of masked tokens.

    About 15 % are masked, and always by `config.mask_token`; the second half is the second segment.

    Returns:
        What `loss` takes, each of shape (num_microbatches, microbatch_size, sequence_length).

    Example:
        >>> config = jq.models.bert.SIZES["bert-tiny"]
        >>> batch = jax.eval_shape(
        ...     lambda key: jq.models.bert.synthetic_batch(key, config, num_microbatches=4, microbatch_size=8),
        ...     jax.random.key(0),
        ... )
        >>> batch["tokens"].shape
        (4, 8, 32)
    """
    tokens_key, mask_key = jax.random.split(key)
    counting = counting_batch(tokens_key, config, num_microbatches=num_microbatches, microbatch_size=microbatch_size)[
        "tokens"
    ]
    length = config.sequence_length
    order = jnp.argsort(jax.random.uniform(mask_key, counting.shape), axis=-1)
    masked = order < max(1, round(MASKED_FRACTION * length))
    segments = (jnp.arange(length) * config.num_segments) // length
    return {
        "tokens": jnp.where(masked, config.mask_token, counting),
        "segments": jnp.broadcast_to(segments, counting.shape),
        "targets": counting,
        "masked": masked.astype(jnp.int32),
    }


def _init_layer(key: PRNGKeyArray, config: BertConfig) -> Params:
    query_key, key_key, value_key, out_key, up_key, down_key = jax.random.split(key, 6)
    dim, heads = config.model_dim, (config.num_heads, config.head_dim)
    return {
        "attention": {
            "query": init_linear(query_key, (dim,), heads),
            "key": init_linear(key_key, (dim,), heads),
            "value": init_linear(value_key, (dim,), heads),
            "out": init_linear(out_key, heads, (dim,)),
        },
        "attention_norm": init_layer_norm(dim),
        "mlp": init_mlp(up_key, down_key, dim, config.mlp_dim),
        "mlp_norm": init_layer_norm(dim),
    }


def _embed(params: Params, microbatch: Microbatch, config: BertConfig, key: PRNGKeyArray | None) -> Hidden:
    embedding = params["embedding"]
    hidden = embed(embedding, microbatch["tokens"]) + embedding["segments"][microbatch["segments"]]
    hidden = _norm(params["embedding_norm"], hidden).astype(config.dtype)
    return dropout(hidden, config.dropout_rate, fold(key, config.num_layers))


def _layer_of(config: BertConfig) -> Callable[..., Hidden]:
    def apply_layer(params, hidden, key):
        attended = dropout(_attention(params["attention"], hidden), config.dropout_rate, fold(key, 0))
        hidden = _norm(params["attention_norm"], hidden + attended)
        mixed = dropout(mlp(params["mlp"], hidden, activation=_gelu), config.dropout_rate, fold(key, 1))
        return _norm(params["mlp_norm"], hidden + mixed)

    return apply_layer


def _attention(params: Params, hidden: Hidden) -> Hidden:
    query, key, value = (linear(params[name], hidden, "bsd,dhk->bshk") for name in ("query", "key", "value"))
    return linear(params["out"], attend(query, key, value, causal=False), "bqhk,hkd->bqd")


def _gelu(values: Array) -> Array:
    return jax.nn.gelu(values, approximate=False)


def _head_loss(params: Params, hidden: Hidden, microbatch: Microbatch) -> Float[Array, ""]:
    transformed = _norm(params["transform_norm"], _gelu(linear(params["transform"], hidden, "bsd,de->bse")))
    logits = logits_of(transformed, params["embedding"]["tokens"]) + params["head_bias"]
    masked = microbatch["masked"].astype(jnp.float32)
    return jnp.sum(token_losses(logits, microbatch["targets"]) * masked) / jnp.maximum(jnp.sum(masked), 1)
