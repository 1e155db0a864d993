"""A LLAMA-2 in plain JAX: RMS norms, rotary positions, SwiGLU, no biases, a separate head.

Queries, keys and values have a product each, and so have the gate and the up projection. With
fewer key heads than query heads (70B), each key and value head is repeated for its group of
queries. By `products` on a mesh both are fused: `qkv` by key heads, `ff1` by hidden features.
Rotary positions turn the two halves of a head against each other, as in Transformers' weights;
Meta's pair neighbours, which is the same model with the columns in another order.

Every layer makes its own rotary table, so that all layers are alike and no stage waits for
another's. Parameters, dtypes and marks are as in `gpt`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxquard.models.configs.llama_config import SIZES as SIZES
from jaxquard.models.configs.llama_config import LlamaConfig as LlamaConfig
from jaxquard.models.configs.llama_config import flops_per_token as flops_per_token
from jaxquard.models.configs.llama_config import num_parameters as num_parameters
from jaxquard.models.layers.attention import Heads, attend, join_heads
from jaxquard.models.layers.language import counting_batch, logits_of, token_losses
from jaxquard.models.layers.parts import (
    Hidden,
    Microbatch,
    Params,
    dropout,
    fold,
    init_linear,
    linear,
    normal,
    rms_norm,
)
from jaxquard.models.layers.products import LayerSpecs, Products, project, replicate_others
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
    query_key, key_key, value_key, out_key, gate_key, up_key, down_key = jax.random.split(key, 7)
    dim, mlp_dim = config.model_dim, config.mlp_dim
    heads, kv_heads = (config.num_heads, config.head_dim), (config.num_kv_heads, config.head_dim)
    residual_scale = 0.02 * (2 * config.num_layers) ** -0.5
    return {
        "attention_norm": _init_norm(config),
        "attention": {
            "query": init_linear(query_key, (dim,), heads, bias=False),
            "key": init_linear(key_key, (dim,), kv_heads, bias=False),
            "value": init_linear(value_key, (dim,), kv_heads, bias=False),
            "out": init_linear(out_key, heads, (dim,), scale=residual_scale, bias=False),
        },
        "mlp_norm": _init_norm(config),
        "mlp": {
            "gate": init_linear(gate_key, (dim,), (mlp_dim,), bias=False),
            "up": init_linear(up_key, (dim,), (mlp_dim,), bias=False),
            "down": init_linear(down_key, (mlp_dim,), (dim,), scale=residual_scale, bias=False),
        },
    }


def _layer_of(config: LlamaConfig, products: Products | None) -> Callable[..., Hidden]:
    def apply_layer(params, hidden, key):
        normed = _norm(params["attention_norm"], hidden, products, "qkv")
        attended = _attention(params["attention"], normed, config, products)
        hidden = hidden + dropout(attended, config.dropout_rate, fold(key, 0))
        normed = _norm(params["mlp_norm"], hidden, products, "ff1")
        mixed = _gated_mlp(params["mlp"], normed, products)
        return hidden + dropout(mixed, config.dropout_rate, fold(key, 1))

    return apply_layer


def _norm(params: Params, hidden: Hidden, products: Products | None, layer: str) -> Hidden:
    if products is None:
        return rms_norm(params, hidden)
    return products.rms_norm(hidden, params["scale"], layer=layer)


def _attention(params: Params, hidden: Hidden, config: LlamaConfig, products: Products | None) -> Hidden:
    if products is None:
        query, key, value = (linear(params[name], hidden, "bsd,dhk->bshk") for name in ("query", "key", "value"))
    else:
        query, key, value = _planned_heads(params, hidden, config, products)
    cosines, sines = _rotary_table(hidden.shape[1], config)
    query, key = _rotate(query, cosines, sines), _rotate(key, cosines, sines)
    group_size = config.num_heads // config.num_kv_heads
    if group_size > 1:
        key, value = jnp.repeat(key, group_size, axis=2), jnp.repeat(value, group_size, axis=2)
    attended = attend(query, key, value, causal=True)
    if products is not None:
        return join_heads(params["out"], attended, products)
    return linear(params["out"], attended, "bqhk,hkd->bqd")


def _planned_heads(
    params: Params, hidden: Hidden, config: LlamaConfig, products: Products
) -> tuple[Heads, Heads, Heads]:
    """Queries, keys and values of one product, by key heads, each with its group of queries."""
    groups = config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim
    query = params["query"]["kernel"].reshape(-1, *groups)
    key, value = (params[name]["kernel"][:, :, None] for name in ("key", "value"))
    qkv = project(products, "qkv", hidden, jnp.concatenate([query, key, value], axis=2))
    query = qkv[:, :, :, :-2].reshape(*qkv.shape[:2], config.num_heads, config.head_dim)
    return query, qkv[:, :, :, -2], qkv[:, :, :, -1]


def _rotary_table(
    length: int, config: LlamaConfig
) -> tuple[Float[Array, "sequence 1 half_head"], Float[Array, "sequence 1 half_head"]]:
    """Cosine and sine of the angle of each position and each pair of a head's numbers."""
    shape = (length, 1, config.head_dim // 2)
    positions = lax.broadcasted_iota(jnp.float32, shape, 0)
    pairs = lax.broadcasted_iota(jnp.float32, shape, 2)
    angles = positions * config.rotary_base ** (-2 * pairs / config.head_dim)
    return jnp.cos(angles), jnp.sin(angles)


def _rotate(heads: Heads, cosines: Array, sines: Array) -> Heads:
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    return rotated.astype(heads.dtype)


def _gated_mlp(params: Params, hidden: Hidden, products: Products | None) -> Hidden:
    if products is not None:
        gate_and_up = jnp.stack([params["gate"]["kernel"], params["up"]["kernel"]], axis=-1)
        both = project(products, "ff1", hidden, gate_and_up)
        return project(products, "ff2", jax.nn.silu(both[..., 0]) * both[..., 1], params["down"]["kernel"])
    gate = jax.nn.silu(linear(params["gate"], hidden, "bsd,dm->bsm"))
    up = linear(params["up"], hidden, "bsd,dm->bsm")
    return linear(params["down"], gate * up, "bsm,md->bsd")
