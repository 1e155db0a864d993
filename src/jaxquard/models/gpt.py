"""A GPT in plain JAX: learned positions, pre-norm layers, GELU, causal attention.

Parameters are nested dicts of float32 arrays, with a list of one dict per layer, or, stacked,
one dict whose leaves have the layers as their first dim. Products run in `config.dtype`; norms,
softmax and the loss in float32.

The model knows nothing of pipelines. `loss` calls the `mark` it is given between stages: the
embedding belongs to the first, the head and the loss to the last, the layers are spread evenly.
`loss_scanned` runs the stacked layers with the `scan` it is given.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .gpt_config import SIZES as SIZES
from .gpt_config import GptConfig as GptConfig
from .gpt_config import flops_per_token as flops_per_token
from .gpt_config import num_parameters as num_parameters

Params = dict[str, Any]
Microbatch = dict[str, Array]
Hidden = Float[Array, "batch sequence model"]


def init(key: PRNGKeyArray, config: GptConfig) -> Params:
    """Makes parameters as GPT-2 does: normal(0.02), residual outputs smaller with depth."""
    embedding_key, position_key, head_key, layers_key = jax.random.split(key, 4)
    table_shape = (config.vocab_size, config.model_dim)
    params: Params = {
        "embedding": {
            "tokens": _normal(embedding_key, table_shape),
            "positions": _normal(position_key, (config.sequence_length, config.model_dim)),
        },
        "layers": [_init_layer(jax.random.fold_in(layers_key, layer), config) for layer in range(config.num_layers)],
        "final_norm": _init_norm(config),
    }
    if not config.tied_embeddings:
        params["head"] = _normal(head_key, table_shape)
    return params


def stack_layers(params: Params) -> Params:
    """Turns the list of layers into one dict whose leaves have the layers as their first dim."""
    return params | {"layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])}


def loss(
    params: Params,
    microbatch: Microbatch,
    config: GptConfig,
    *,
    mark: Callable[[Array], Array] = lambda hidden: hidden,
    num_stages: int = 1,
    remat: bool | Callable[..., bool] = False,
    key: PRNGKeyArray | None = None,
) -> Float[Array, ""]:
    """The mean cross entropy of `microbatch["targets"]`, given `microbatch["tokens"]`.

    Args:
        params: what `init` makes.
        microbatch: `tokens` and `targets`, both integers of shape (batch, sequence).
        config: the shape of the model.
        mark: called on the hidden state at the end of each stage but the last.
        num_stages: into how many stages to cut; at most one per layer.
        remat: recompute each layer in the backward pass; or a `jax.checkpoint` policy.
        key: for dropout; without one nothing is dropped.
    """
    if not 1 <= num_stages <= config.num_layers:
        raise ValueError(
            f"num_stages={num_stages}, but a stage needs a layer and the model has {config.num_layers}. "
            f"Choose 1 to {config.num_layers} stages."
        )
    apply_layer = _rematted_layer(config, remat)
    marked_layers = _marked_layers(config.num_layers, num_stages)
    hidden = _embed(params, microbatch["tokens"], config, key)
    for layer, layer_params in enumerate(params["layers"]):
        if layer in marked_layers:
            hidden = mark(hidden)
        hidden = apply_layer(layer_params, hidden, _fold(key, layer))
    return _head_loss(params, hidden, microbatch["targets"], config)


def loss_scanned(
    params: Params,
    microbatch: Microbatch,
    config: GptConfig,
    *,
    scan: Callable[..., tuple[Any, Any]] = lax.scan,
    remat: bool | Callable[..., bool] = False,
    key: PRNGKeyArray | None = None,
) -> Float[Array, ""]:
    """The same loss with stacked layers, run as `scan(body, carry, params["layers"])`.

    The carry is the hidden state, and with dropout the number of the layer beside it.
    """
    apply_layer = _rematted_layer(config, remat)

    def body(hidden, layer_params):
        return apply_layer(layer_params, hidden, None), None

    def body_with_dropout(carry, layer_params):
        hidden, layer = carry
        return (apply_layer(layer_params, hidden, _fold(key, layer)), layer + 1), None

    hidden = _embed(params, microbatch["tokens"], config, key)
    if key is None or not config.dropout_rate:
        hidden, _ = scan(body, hidden, params["layers"])
    else:
        (hidden, _), _ = scan(body_with_dropout, (hidden, jnp.int32(0)), params["layers"])
    return _head_loss(params, hidden, microbatch["targets"], config)


def synthetic_batch(key: PRNGKeyArray, config: GptConfig, *, num_microbatches: int, microbatch_size: int) -> Microbatch:
    """Makes sequences that a model can learn: each counts up from a random token in steps of 1 to 4.

    Returns:
        `tokens` and `targets` of shape (num_microbatches, microbatch_size, sequence_length).
    """
    start_key, stride_key = jax.random.split(key)
    shape = (num_microbatches, microbatch_size, 1)
    start = jax.random.randint(start_key, shape, 0, config.vocab_size)
    stride = jax.random.randint(stride_key, shape, 1, 5)
    sequence = (start + stride * jnp.arange(config.sequence_length + 1)) % config.vocab_size
    return {"tokens": sequence[..., :-1], "targets": sequence[..., 1:]}


def _marked_layers(num_layers: int, num_stages: int) -> set[int]:
    """The layers before which a stage ends; where they do not divide, the first stages take one more."""
    layers, extra = divmod(num_layers, num_stages)
    return {stage * layers + min(stage, extra) for stage in range(1, num_stages)}


def _normal(key: PRNGKeyArray, shape: tuple[int, ...], scale: float = 0.02) -> Array:
    return scale * jax.random.normal(key, shape, jnp.float32)


def _init_norm(config: GptConfig) -> Params:
    return {"scale": jnp.ones(config.model_dim), "bias": jnp.zeros(config.model_dim)}


def _init_layer(key: PRNGKeyArray, config: GptConfig) -> Params:
    qkv_key, out_key, up_key, down_key = jax.random.split(key, 4)
    dim, heads, head_dim, mlp_dim = config.model_dim, config.num_heads, config.head_dim, config.mlp_dim
    residual_scale = 0.02 * (2 * config.num_layers) ** -0.5
    return {
        "norm_1": _init_norm(config),
        "attention": {
            "qkv": {
                "kernel": _normal(qkv_key, (dim, 3, heads, head_dim)),
                "bias": jnp.zeros((3, heads, head_dim)),
            },
            "out": {
                "kernel": _normal(out_key, (heads, head_dim, dim), residual_scale),
                "bias": jnp.zeros(dim),
            },
        },
        "norm_2": _init_norm(config),
        "mlp": {
            "up": {"kernel": _normal(up_key, (dim, mlp_dim)), "bias": jnp.zeros(mlp_dim)},
            "down": {"kernel": _normal(down_key, (mlp_dim, dim), residual_scale), "bias": jnp.zeros(dim)},
        },
    }


def _rematted_layer(config: GptConfig, remat: bool | Callable[..., bool]) -> Callable[..., Hidden]:
    def apply_layer(layer_params, hidden, key):
        return _layer(layer_params, hidden, config, key)

    if remat is False:
        return apply_layer
    return jax.checkpoint(apply_layer, policy=None if remat is True else remat)


def _embed(params: Params, tokens: Int[Array, "batch sequence"], config: GptConfig, key: PRNGKeyArray | None) -> Hidden:
    embedding = params["embedding"]
    hidden = embedding["tokens"][tokens] + embedding["positions"][: tokens.shape[-1]]
    return _dropout(hidden.astype(config.dtype), config, _fold(key, config.num_layers))


def _layer(params: Params, hidden: Hidden, config: GptConfig, key: PRNGKeyArray | None) -> Hidden:
    attended = _attention(params["attention"], _norm(params["norm_1"], hidden), config)
    hidden = hidden + _dropout(attended, config, _fold(key, 0))
    mlp = _linear(params["mlp"]["up"], _norm(params["norm_2"], hidden), "bsd,dm->bsm")
    mlp = _linear(params["mlp"]["down"], jax.nn.gelu(mlp), "bsm,md->bsd")
    return hidden + _dropout(mlp, config, _fold(key, 1))


def _attention(params: Params, hidden: Hidden, config: GptConfig) -> Hidden:
    qkv = _linear(params["qkv"], hidden, "bsd,dnhk->bsnhk")
    query, key, value = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    scores = jnp.einsum("bqhk,bshk->bhqs", query, key, preferred_element_type=jnp.float32)
    length = hidden.shape[1]
    causal = lax.broadcasted_iota(jnp.int32, (length, length), 0) >= lax.broadcasted_iota(
        jnp.int32, (length, length), 1
    )
    scores = jnp.where(causal, scores * config.head_dim**-0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(hidden.dtype)
    return _linear(params["out"], jnp.einsum("bhqs,bshk->bqhk", weights, value), "bqhk,hkd->bqd")


def _head_loss(
    params: Params, hidden: Hidden, targets: Int[Array, "batch sequence"], config: GptConfig
) -> Float[Array, ""]:
    table = params["embedding"]["tokens"] if config.tied_embeddings else params["head"]
    hidden = _norm(params["final_norm"], hidden)
    logits = jnp.einsum("bsd,vd->bsv", hidden, table.astype(config.dtype), preferred_element_type=jnp.float32)
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - target_logits)


def _linear(params: Params, inputs: Array, product: str) -> Array:
    outputs = jnp.einsum(product, inputs, params["kernel"].astype(inputs.dtype))
    return outputs + params["bias"].astype(inputs.dtype)


def _norm(params: Params, hidden: Hidden) -> Hidden:
    wide = hidden.astype(jnp.float32)
    centered = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
    normed = centered * lax.rsqrt(variance + 1e-5) * params["scale"] + params["bias"]
    return normed.astype(hidden.dtype)


def _fold(key: PRNGKeyArray | None, data: int | Array) -> PRNGKeyArray | None:
    return None if key is None else jax.random.fold_in(key, data)


def _dropout(values: Array, config: GptConfig, key: PRNGKeyArray | None) -> Array:
    if key is None or not config.dropout_rate:
        return values
    kept = jax.random.bernoulli(key, 1 - config.dropout_rate, values.shape)
    return jnp.where(kept, values / (1 - config.dropout_rate), 0)
