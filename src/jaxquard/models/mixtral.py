"""A LLAMA-like mixture of experts in plain JAX, as Mixtral and DeepSeekMoE are: attention of `llama`, gated experts.

Tokens reach their experts as in `moe`: an einsum with a one-hot mask dispatches them into (experts, batch, capacity,
model), three products with the experts as batch dim work on them, and another einsum brings them back with their
weights. Each row of the batch is a group of its own.

Departures: Mixtral and DeepSeekMoE drop no tokens; here an expert has a capacity, as in GShard, so that shapes are
known. DeepSeekMoE's two shared experts are one MLP of twice the width, which is the same. Its balance loss by devices
is left out. Parameters, dtypes and marks are as in `moe`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxquard.models.configs.mixtral_config import SIZES as SIZES
from jaxquard.models.configs.mixtral_config import MixtralConfig as MixtralConfig
from jaxquard.models.configs.mixtral_config import flops_per_token as flops_per_token
from jaxquard.models.configs.mixtral_config import num_parameters as num_parameters
from jaxquard.models.layers.gated_mlp import gated_mlp, init_gated_mlp
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
from jaxquard.models.layers.rotary_attention import init_rotary_attention, rotary_attention
from jaxquard.models.layers.stages import Mark, Remat, no_mark, run_layers
from jaxquard.models.layers.top_k_gating import top_k_gating

HiddenAndBalance = tuple[Hidden, Float[Array, ""]]


def init(key: PRNGKeyArray, config: MixtralConfig) -> Params:
    """Makes parameters as `llama.init` does; every expert has its own.

    Example:
        >>> config = jq.models.mixtral.SIZES["mixtral-tiny"]
        >>> shapes = jax.eval_shape(lambda key: jq.models.mixtral.init(key, config), jax.random.key(0))
        >>> len(shapes["layers"])
        2
    """
    embedding_key, head_key, layers_key = jax.random.split(key, 3)
    table_shape = (config.vocab_size, config.model_dim)
    return {
        "embedding": normal(embedding_key, table_shape),
        "layers": [
            _init_layer(jax.random.fold_in(layers_key, layer), config, layer) for layer in range(config.num_layers)
        ],
        "final_norm": _init_norm(config),
        "head": normal(head_key, table_shape),
    }


def loss(
    params: Params,
    microbatch: Microbatch,
    config: MixtralConfig,
    *,
    mark: Mark = no_mark,
    num_stages: int = 1,
    remat: Remat = False,
    key: PRNGKeyArray | None = None,
) -> Float[Array, ""]:
    """The mean cross entropy of the next tokens, plus the weighted load-balancing losses; arguments as for `moe.loss`.

    Example:
        >>> config = jq.models.mixtral.SIZES["mixtral-tiny"]
        >>> made = jq.models.zoo.training_step(jq.models.mixtral, config, only_shapes=True)
        >>> params = jax.eval_shape(made.init_state, jax.random.key(0))["params"]
        >>> loss = lambda params, batch: jq.models.mixtral.loss(params, batch, config)
        >>> jax.eval_shape(loss, params, made.batch).shape
        ()
    """
    hidden = params["embedding"][microbatch["tokens"]].astype(config.dtype)
    values = (hidden, jnp.zeros((), jnp.float32))
    hidden, balance_loss = run_layers(
        _layer_of(config), params["layers"], values, mark=mark, num_stages=num_stages, remat=remat, key=key
    )
    logits = logits_of(rms_norm(params["final_norm"], hidden), params["head"])
    return jnp.mean(token_losses(logits, microbatch["targets"])) + config.balance_weight * balance_loss


def synthetic_batch(
    key: PRNGKeyArray, config: MixtralConfig, *, num_microbatches: int, microbatch_size: int
) -> Microbatch:
    """Makes the batch that `gpt.synthetic_batch` makes.

    Example:
        >>> config = jq.models.mixtral.SIZES["mixtral-tiny"]
        >>> batch = jax.eval_shape(
        ...     lambda key: jq.models.mixtral.synthetic_batch(key, config, num_microbatches=4, microbatch_size=8),
        ...     jax.random.key(0),
        ... )
        >>> batch["tokens"].shape
        (4, 8, 32)
    """
    return counting_batch(key, config, num_microbatches=num_microbatches, microbatch_size=microbatch_size)


def _init_norm(config: MixtralConfig) -> Params:
    return {"scale": jnp.ones(config.model_dim)}


def _init_layer(key: PRNGKeyArray, config: MixtralConfig, layer: int) -> Params:
    *attention_keys, router_key, experts_key, mlp_key = jax.random.split(key, 7)
    dim, residual_scale = config.model_dim, 0.02 * (2 * config.num_layers) ** -0.5
    params: Params = {
        "attention_norm": _init_norm(config),
        "attention": init_rotary_attention(
            attention_keys,
            dim,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            out_scale=residual_scale,
        ),
        "mlp_norm": _init_norm(config),
    }
    dense_dim = config.shared_mlp_dim if config.has_experts(layer) else config.first_mlp_dim
    if dense_dim:
        params["mlp"] = init_gated_mlp(tuple(jax.random.split(mlp_key, 3)), dim, dense_dim, down_scale=residual_scale)
    if config.has_experts(layer):
        params["experts"] = {
            "router": init_linear(router_key, (dim,), (config.num_experts,), bias=False),
            **_init_experts(experts_key, config, residual_scale),
        }
    return params


def _init_experts(key: PRNGKeyArray, config: MixtralConfig, residual_scale: float) -> Params:
    gate_key, up_key, down_key = jax.random.split(key, 3)
    shape = (config.num_experts, config.model_dim, config.mlp_dim)
    return {
        "gate": {"kernel": normal(gate_key, shape)},
        "up": {"kernel": normal(up_key, shape)},
        "down": {"kernel": normal(down_key, (shape[0], shape[2], shape[1]), residual_scale)},
    }


def _layer_of(config: MixtralConfig) -> Callable[..., HiddenAndBalance]:
    def apply_layer(params, values, key):
        hidden, balance_loss = values
        normed = rms_norm(params["attention_norm"], hidden)
        attended = rotary_attention(params["attention"], normed, rotary_base=config.rotary_base)
        hidden = hidden + dropout(attended, config.dropout_rate, fold(key, 0))
        normed = rms_norm(params["mlp_norm"], hidden)
        mixed = gated_mlp(params["mlp"], normed) if "mlp" in params else jnp.zeros_like(normed)
        if "experts" in params:
            routed, layer_balance_loss = _experts(params["experts"], normed, config)
            mixed, balance_loss = mixed + routed, balance_loss + layer_balance_loss
        return hidden + dropout(mixed, config.dropout_rate, fold(key, 1)), balance_loss

    return apply_layer


def _experts(params: Params, hidden: Hidden, config: MixtralConfig) -> HiddenAndBalance:
    logits = linear(params["router"], hidden.astype(jnp.float32), "bsd,de->bse")
    combine, balance_loss = top_k_gating(
        logits,
        top_k=config.top_k,
        capacity=config.capacity(hidden.shape[1]),
        normalises_gates=config.normalises_gates,
    )
    dispatch = (combine > 0).astype(hidden.dtype)
    inputs = jnp.einsum("bsec,bsd->ebcd", dispatch, hidden)
    gate = jax.nn.silu(linear(params["gate"], inputs, "ebcd,edm->ebcm"))
    up = linear(params["up"], inputs, "ebcd,edm->ebcm")
    outputs = linear(params["down"], gate * up, "ebcm,emd->ebcd")
    return jnp.einsum("bsec,ebcd->bsd", combine.astype(hidden.dtype), outputs), balance_loss
