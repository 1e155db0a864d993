"""A GPT in plain JAX: learned positions, pre-norm layers, GELU, causal attention.

Parameters are nested dicts of float32 arrays, with a list of one dict per layer, or, stacked,
one dict whose leaves have the layers as their first dim. Products run in `config.dtype`; norms,
softmax and the loss in float32.

The model knows nothing of pipelines. `loss` calls the `mark` it is given between stages: the
embedding belongs to the first, the head and the loss to the last, the layers are spread evenly.
`loss_scanned` runs the stacked layers with the `scan` it is given. Nor does it know of meshes:
the products and norms of its layers are those of the `products` it is given, if any.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxquard.models.configs.gpt_config import SIZES as SIZES
from jaxquard.models.configs.gpt_config import GptConfig as GptConfig
from jaxquard.models.configs.gpt_config import flops_per_token as flops_per_token
from jaxquard.models.configs.gpt_config import num_parameters as num_parameters
from jaxquard.models.layers.attention import fused_causal_attention, init_fused_attention
from jaxquard.models.layers.language import counting_batch, embed, init_embedding, logits_of, token_losses
from jaxquard.models.layers.parts import (
    Hidden,
    Microbatch,
    Params,
    dropout,
    fold,
    init_layer_norm,
    init_mlp,
    layer_norm,
    mlp,
    normal,
)
from jaxquard.models.layers.products import LayerSpecs, Products, project, replicate_others
from jaxquard.models.layers.stages import Mark, Remat, no_mark, rematted, run_layers


def init(key: PRNGKeyArray, config: GptConfig) -> Params:
    """Makes parameters as GPT-2 does: normal(0.02), residual outputs smaller with depth.

    Example:
        >>> config = jq.models.gpt.SIZES["gpt-tiny"]
        >>> shapes = jax.eval_shape(lambda key: jq.models.gpt.init(key, config), jax.random.key(0))
        >>> len(shapes["layers"])
        2
    """
    embedding_key, position_key, head_key, layers_key = jax.random.split(key, 4)
    dim = config.model_dim
    params: Params = {
        "embedding": init_embedding(embedding_key, position_key, config.vocab_size, config.sequence_length, dim),
        "layers": [_init_layer(jax.random.fold_in(layers_key, layer), config) for layer in range(config.num_layers)],
        "final_norm": init_layer_norm(dim),
    }
    if not config.tied_embeddings:
        params["head"] = normal(head_key, (config.vocab_size, dim))
    return params


def stack_layers(params: Params) -> Params:
    """Turns the list of layers into one dict whose leaves have the layers as their first dim.

    Example:
        >>> config = jq.models.gpt.SIZES["gpt-tiny"]
        >>> make = lambda key: jq.models.gpt.stack_layers(jq.models.gpt.init(key, config))
        >>> jax.eval_shape(make, jax.random.key(0))["layers"]["norm_1"]["scale"].shape
        (2, 64)
    """
    return params | {"layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])}


def loss(
    params: Params,
    microbatch: Microbatch,
    config: GptConfig,
    *,
    mark: Mark = no_mark,
    num_stages: int = 1,
    remat: Remat = False,
    key: PRNGKeyArray | None = None,
    products: Products | None = None,
) -> Float[Array, ""]:
    """The mean cross entropy of `microbatch["targets"]`, given `microbatch["tokens"]`.

    Args:
        params: what `init` makes.
        microbatch: `tokens` and `targets`, both integers of shape (batch, sequence).
        config: the shape of the model.
        mark: called on the hidden state at the end of each stage but the last.
        num_stages: the number of stages; at most one per layer.
        remat: recompute each layer in the backward pass; or a `jax.checkpoint` policy.
        key: for dropout; without one nothing is dropped.
        products: those of the layers, and their norms, on a 2D mesh: `jaxquard.gemm.products(plan)`.

    Example:
        >>> config = jq.models.gpt.SIZES["gpt-tiny"]
        >>> made = jq.models.zoo.training_step(jq.models.gpt, config, only_shapes=True)
        >>> params = jax.eval_shape(made.init_state, jax.random.key(0))["params"]
        >>> jax.eval_shape(lambda params, batch: jq.models.gpt.loss(params, batch, config), params, made.batch).shape
        ()
    """
    hidden = _embed(params, microbatch["tokens"], config, key)
    hidden = run_layers(
        _layer_of(config, products), params["layers"], hidden, mark=mark, num_stages=num_stages, remat=remat, key=key
    )
    return _head_loss(params, hidden, microbatch["targets"], config, products)


def loss_scanned(
    params: Params,
    microbatch: Microbatch,
    config: GptConfig,
    *,
    scan: Callable[..., tuple[Any, Any]] = lax.scan,
    remat: Remat = False,
    key: PRNGKeyArray | None = None,
    products: Products | None = None,
) -> Float[Array, ""]:
    """The same loss with stacked layers, run as `scan(body, carry, params["layers"])`.

    The carry is the hidden state, and with dropout the number of the layer beside it.

    Example:
        >>> config = jq.models.gpt.SIZES["gpt-tiny"]
        >>> made = jq.models.zoo.training_step(jq.models.gpt, config, only_shapes=True)
        >>> params = jax.eval_shape(made.init_state, jax.random.key(0))["params"]
        >>> stacked = jax.eval_shape(jq.models.gpt.stack_layers, params)
        >>> jax.eval_shape(
        ...     lambda params, batch: jq.models.gpt.loss_scanned(params, batch, config), stacked, made.batch
        ... ).shape
        ()
    """
    apply_layer = rematted(_layer_of(config, products), remat)

    def body(hidden, layer_params):
        return apply_layer(layer_params, hidden, None), None

    def body_with_dropout(carry, layer_params):
        hidden, layer = carry
        return (apply_layer(layer_params, hidden, fold(key, layer)), layer + 1), None

    hidden = _embed(params, microbatch["tokens"], config, key)
    if key is None or not config.dropout_rate:
        hidden, _ = scan(body, hidden, params["layers"])
    else:
        (hidden, _), _ = scan(body_with_dropout, (hidden, jnp.int32(0)), params["layers"])
    return _head_loss(params, hidden, microbatch["targets"], config, products)


def shardings(params: Params, products: Products) -> Params:
    """The shardings of parameters with which the products of the layers move nothing else; the ends are replicated.

    Args:
        params: what `init` makes; the layers may be stacked.
        products: as for `loss`.
    """
    qkv, out, ff1, ff2 = (LayerSpecs(products, layer) for layer in ("qkv", "out", "ff1", "ff2"))

    def of_layer(layer: Params, stacked: str) -> Params:
        return {
            "norm_1": qkv.norm(layer["norm_1"], stacked),
            "attention": {
                "qkv": {"kernel": qkv.kernel(stacked + "i-o-"), "bias": qkv.bias(stacked + "-o-")},
                "out": {"kernel": out.kernel(stacked + "i-o"), "bias": out.bias(stacked + "o")},
            },
            "norm_2": ff1.norm(layer["norm_2"], stacked),
            "mlp": {
                "up": {"kernel": ff1.kernel(stacked + "io"), "bias": ff1.bias(stacked + "o")},
                "down": {"kernel": ff2.kernel(stacked + "io"), "bias": ff2.bias(stacked + "o")},
            },
        }

    layers = params["layers"]
    known = {
        "layers": [of_layer(layer, "") for layer in layers] if isinstance(layers, list) else of_layer(layers, "-"),
        "final_norm": qkv.norm(params["final_norm"]),
    }
    return replicate_others(params, known, qkv.mesh)


def synthetic_batch(key: PRNGKeyArray, config: GptConfig, *, num_microbatches: int, microbatch_size: int) -> Microbatch:
    """Makes sequences that a model can learn: each counts up from a random token in steps of 1 to 4.

    Returns:
        `tokens` and `targets` of shape (num_microbatches, microbatch_size, sequence_length).

    Example:
        >>> config = jq.models.gpt.SIZES["gpt-tiny"]
        >>> batch = jax.eval_shape(
        ...     lambda key: jq.models.gpt.synthetic_batch(key, config, num_microbatches=4, microbatch_size=8),
        ...     jax.random.key(0),
        ... )
        >>> batch["tokens"].shape
        (4, 8, 32)
    """
    return counting_batch(key, config, num_microbatches=num_microbatches, microbatch_size=microbatch_size)


def _init_layer(key: PRNGKeyArray, config: GptConfig) -> Params:
    qkv_key, out_key, up_key, down_key = jax.random.split(key, 4)
    dim = config.model_dim
    residual_scale = 0.02 * (2 * config.num_layers) ** -0.5
    return {
        "norm_1": init_layer_norm(dim),
        "attention": init_fused_attention(qkv_key, out_key, dim, config.num_heads, out_scale=residual_scale),
        "norm_2": init_layer_norm(dim),
        "mlp": init_mlp(up_key, down_key, dim, config.mlp_dim, down_scale=residual_scale),
    }


def _embed(params: Params, tokens: Int[Array, "batch sequence"], config: GptConfig, key: PRNGKeyArray | None) -> Hidden:
    hidden = embed(params["embedding"], tokens).astype(config.dtype)
    return dropout(hidden, config.dropout_rate, fold(key, config.num_layers))


def _layer_of(config: GptConfig, products: Products | None) -> Callable[..., Hidden]:
    def apply_layer(params, hidden, key):
        normed = _norm(params["norm_1"], hidden, products, "qkv")
        attended = fused_causal_attention(params["attention"], normed, products=products)
        hidden = hidden + dropout(attended, config.dropout_rate, fold(key, 0))
        normed = _norm(params["norm_2"], hidden, products, "ff1")
        mixed = _mlp(params["mlp"], normed, products)
        return hidden + dropout(mixed, config.dropout_rate, fold(key, 1))

    return apply_layer


def _norm(params: Params, hidden: Hidden, products: Products | None, layer: str) -> Hidden:
    if products is None:
        return layer_norm(params, hidden)
    return products.layer_norm(hidden, params["scale"], params["bias"], layer=layer)


def _mlp(params: Params, hidden: Hidden, products: Products | None) -> Hidden:
    if products is None:
        return mlp(params, hidden, activation=jax.nn.gelu)
    up = project(products, "ff1", hidden, params["up"]["kernel"], params["up"]["bias"])
    return project(products, "ff2", jax.nn.gelu(up), params["down"]["kernel"], params["down"]["bias"])


def _head_loss(
    params: Params,
    hidden: Hidden,
    targets: Int[Array, "batch sequence"],
    config: GptConfig,
    products: Products | None,
) -> Float[Array, ""]:
    table = params["embedding"]["tokens"] if config.tied_embeddings else params["head"]
    logits = logits_of(_norm(params["final_norm"], hidden, products, "qkv"), table)
    return jnp.mean(token_losses(logits, targets))
