"""A LLAMA in plain JAX, as LLAMA-2 and 3 are: RMS norms, rotary positions, SwiGLU, no biases, a separate head.

Queries, keys and values have a product each, and so have the gate and the up projection. By
`products` on a mesh both are fused: `qkv` by key heads, `ff1` by hidden features. LLAMA-3 differs
in its sizes and in its rotary base alone. Parameters, dtypes and marks are as in `gpt`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxquard.models.configs.llama_config import SIZES as SIZES
from jaxquard.models.configs.llama_config import LlamaConfig as LlamaConfig
from jaxquard.models.configs.llama_config import flops_per_token as flops_per_token
from jaxquard.models.configs.llama_config import num_parameters as num_parameters
from jaxquard.models.layers.gated_mlp import gated_mlp, init_gated_mlp
from jaxquard.models.layers.language import counting_batch, logits_of, token_losses
from jaxquard.models.layers.parts import (
    Hidden,
    Microbatch,
    Params,
    dropout,
    fold,
    normal,
    rms_norm,
)
from jaxquard.models.layers.products import LayerSpecs, Products, replicate_others
from jaxquard.models.layers.rotary_attention import init_rotary_attention, rotary_attention
from jaxquard.models.layers.stages import Mark, Remat, no_mark, run_layers


def init(key: PRNGKeyArray, config: LlamaConfig) -> Params:
    """Makes parameters: normal(0.02), residual outputs smaller with depth, as GPT-2's.

    Example:
        >>> config = jq.models.llama.SIZES["llama-tiny"]
        >>> shapes = jax.eval_shape(lambda key: jq.models.llama.init(key, config), jax.random.key(0))
        >>> len(shapes["layers"])
        2
    """
    embedding_key, head_key, layers_key = jax.random.split(key, 3)
    table_shape = (config.vocab_size, config.model_dim)
    return {
        "embedding": normal(embedding_key, table_shape),
        "layers": [_init_layer(jax.random.fold_in(layers_key, layer), config) for layer in range(config.num_layers)],
        "final_norm": _init_norm(config),
        "head": normal(head_key, table_shape),
    }


def loss(
    params: Params,
    microbatch: Microbatch,
    config: LlamaConfig,
    *,
    mark: Mark = no_mark,
    num_stages: int = 1,
    remat: Remat = False,
    key: PRNGKeyArray | None = None,
    products: Products | None = None,
) -> Float[Array, ""]:
    """The mean cross entropy of the next tokens; the arguments are those of `gpt.loss`.

    Example:
        >>> config = jq.models.llama.SIZES["llama-tiny"]
        >>> made = jq.models.zoo.training_step(jq.models.llama, config, only_shapes=True)
        >>> params = jax.eval_shape(made.init_state, jax.random.key(0))["params"]
        >>> jax.eval_shape(lambda params, batch: jq.models.llama.loss(params, batch, config), params, made.batch).shape
        ()
    """
    hidden = params["embedding"][microbatch["tokens"]].astype(config.dtype)
    hidden = run_layers(
        _layer_of(config, products), params["layers"], hidden, mark=mark, num_stages=num_stages, remat=remat, key=key
    )
    logits = logits_of(_norm(params["final_norm"], hidden, products, "qkv"), params["head"])
    return jnp.mean(token_losses(logits, microbatch["targets"]))


def shardings(params: Params, products: Products) -> Params:
    """The shardings of parameters with which the products of the layers move nothing else; the ends are replicated.

    Args:
        params: what `init` makes.
        products: as for `loss`.
    """
    qkv, out, ff1, ff2 = (LayerSpecs(products, layer) for layer in ("qkv", "out", "ff1", "ff2"))

    def of_layer(layer: Params) -> Params:
        attention = {name: {"kernel": qkv.kernel("io-")} for name in ("query", "key", "value")}
        mlp = {name: {"kernel": ff1.kernel("io")} for name in ("gate", "up")}
        return {
            "attention_norm": qkv.norm(layer["attention_norm"]),
            "attention": attention | {"out": {"kernel": out.kernel("i-o")}},
            "mlp_norm": ff1.norm(layer["mlp_norm"]),
            "mlp": mlp | {"down": {"kernel": ff2.kernel("io")}},
        }

    known = {"layers": [of_layer(layer) for layer in params["layers"]], "final_norm": qkv.norm(params["final_norm"])}
    return replicate_others(params, known, qkv.mesh)


def synthetic_batch(
    key: PRNGKeyArray, config: LlamaConfig, *, num_microbatches: int, microbatch_size: int
) -> Microbatch:
    """Makes the batch that `gpt.synthetic_batch` makes.

    Example:
        >>> config = jq.models.llama.SIZES["llama-tiny"]
        >>> batch = jax.eval_shape(
        ...     lambda key: jq.models.llama.synthetic_batch(key, config, num_microbatches=4, microbatch_size=8),
        ...     jax.random.key(0),
        ... )
        >>> batch["tokens"].shape
        (4, 8, 32)
    """
    return counting_batch(key, config, num_microbatches=num_microbatches, microbatch_size=microbatch_size)


def _init_norm(config: LlamaConfig) -> Params:
    return {"scale": jnp.ones(config.model_dim)}


def _init_layer(key: PRNGKeyArray, config: LlamaConfig) -> Params:
    *attention_keys, gate_key, up_key, down_key = jax.random.split(key, 7)
    residual_scale = 0.02 * (2 * config.num_layers) ** -0.5
    return {
        "attention_norm": _init_norm(config),
        "attention": init_rotary_attention(
            attention_keys,
            config.model_dim,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            out_scale=residual_scale,
        ),
        "mlp_norm": _init_norm(config),
        "mlp": init_gated_mlp(
            (gate_key, up_key, down_key), config.model_dim, config.mlp_dim, down_scale=residual_scale
        ),
    }


def _layer_of(config: LlamaConfig, products: Products | None) -> Callable[..., Hidden]:
    def apply_layer(params, hidden, key):
        normed = _norm(params["attention_norm"], hidden, products, "qkv")
        attended = rotary_attention(params["attention"], normed, rotary_base=config.rotary_base, products=products)
        hidden = hidden + dropout(attended, config.dropout_rate, fold(key, 0))
        normed = _norm(params["mlp_norm"], hidden, products, "ff1")
        mixed = gated_mlp(params["mlp"], normed, products=products)
        return hidden + dropout(mixed, config.dropout_rate, fold(key, 1))

    return apply_layer


def _norm(params: Params, hidden: Hidden, products: Products | None, layer: str) -> Hidden:
    if products is None:
        return rms_norm(params, hidden)
    return products.rms_norm(hidden, params["scale"], layer=layer)
