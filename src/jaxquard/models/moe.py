"""A GShard mixture of experts in plain JAX: a GPT in which every other MLP is one of many experts.

Layers 0, 2, 4, ... have experts. Tokens reach them as GShard's do: an einsum with a one-hot mask
dispatches them into (experts, batch, capacity, model), two products with the experts as batch dim
work on them, and another einsum brings them back with their weights. Each row of the batch is a
group of its own, so the batch stays a dim of every tensor.

Departures from Lepikhin et al. 2020: a decoder that predicts the next token, as in CFP and Alpa,
not a translator; pre-norm layers; GELU in the dense MLPs, ReLU in the experts. Alpa's groups have
2048 tokens, two rows. The embedding is the head. Parameters, dtypes and marks are as in `gpt`, but
what layers pass on, and what is marked, is the hidden state with the load-balancing loss so far.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxquard.models.configs.moe_config import SIZES as SIZES
from jaxquard.models.configs.moe_config import MoeConfig as MoeConfig
from jaxquard.models.configs.moe_config import flops_per_token as flops_per_token
from jaxquard.models.configs.moe_config import num_parameters as num_parameters
from jaxquard.models.layers.attention import fused_causal_attention, init_fused_attention
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
from jaxquard.models.layers.top2_gating import top2_gating

HiddenAndBalance = tuple[Hidden, Float[Array, ""]]


def init(key: PRNGKeyArray, config: MoeConfig) -> Params:
    """Makes parameters as `gpt.init` does; every expert has its own.

    Example:
        >>> config = jq.models.moe.SIZES["moe-tiny"]
        >>> shapes = jax.eval_shape(lambda key: jq.models.moe.init(key, config), jax.random.key(0))
        >>> len(shapes["layers"])
        2
    """
    tokens_key, positions_key, layers_key = jax.random.split(key, 3)
    dim = config.model_dim
    return {
        "embedding": init_embedding(tokens_key, positions_key, config.vocab_size, config.sequence_length, dim),
        "layers": [
            _init_layer(jax.random.fold_in(layers_key, layer), config, layer) for layer in range(config.num_layers)
        ],
        "final_norm": init_layer_norm(dim),
    }


def loss(
    params: Params,
    microbatch: Microbatch,
    config: MoeConfig,
    *,
    mark: Mark = no_mark,
    num_stages: int = 1,
    remat: Remat = False,
    key: PRNGKeyArray | None = None,
) -> Float[Array, ""]:
    """The mean cross entropy of `microbatch["targets"]`, plus the weighted load-balancing losses.

    The arguments are those of `gpt.loss`, without `products`; `mark` is called on the pair of hidden state and
    load-balancing loss, and `key` is also for the random second expert.

    Example:
        >>> config = jq.models.moe.SIZES["moe-tiny"]
        >>> made = jq.models.zoo.training_step(jq.models.moe, config, only_shapes=True)
        >>> params = jax.eval_shape(made.init_state, jax.random.key(0))["params"]
        >>> jax.eval_shape(lambda params, batch: jq.models.moe.loss(params, batch, config), params, made.batch).shape
        ()
    """
    hidden = embed(params["embedding"], microbatch["tokens"]).astype(config.dtype)
    hidden = dropout(hidden, config.dropout_rate, fold(key, config.num_layers))
    values = (hidden, jnp.zeros((), jnp.float32))
    hidden, balance_loss = run_layers(
        _layer_of(config), params["layers"], values, mark=mark, num_stages=num_stages, remat=remat, key=key
    )
    logits = logits_of(layer_norm(params["final_norm"], hidden), params["embedding"]["tokens"])
    return jnp.mean(token_losses(logits, microbatch["targets"])) + config.balance_weight * balance_loss


def synthetic_batch(key: PRNGKeyArray, config: MoeConfig, *, num_microbatches: int, microbatch_size: int) -> Microbatch:
    """Makes the batch that `gpt.synthetic_batch` makes.

    Example:
        >>> config = jq.models.moe.SIZES["moe-tiny"]
        >>> batch = jax.eval_shape(
        ...     lambda key: jq.models.moe.synthetic_batch(key, config, num_microbatches=4, microbatch_size=8),
        ...     jax.random.key(0),
        ... )
        >>> batch["tokens"].shape
        (4, 8, 32)
    """
    return counting_batch(key, config, num_microbatches=num_microbatches, microbatch_size=microbatch_size)


def _init_layer(key: PRNGKeyArray, config: MoeConfig, layer: int) -> Params:
    qkv_key, out_key, router_key, up_key, down_key = jax.random.split(key, 5)
    dim, mlp_dim, experts = config.model_dim, config.mlp_dim, config.num_experts
    residual_scale = 0.02 * (2 * config.num_layers) ** -0.5
    params: Params = {
        "norm_1": init_layer_norm(dim),
        "attention": init_fused_attention(qkv_key, out_key, dim, config.num_heads, out_scale=residual_scale),
        "norm_2": init_layer_norm(dim),
    }
    if not config.has_experts(layer):
        return params | {"mlp": init_mlp(up_key, down_key, dim, mlp_dim, down_scale=residual_scale)}
    return params | {
        "experts": {
            "router": init_linear(router_key, (dim,), (experts,), bias=False),
            "up": {"kernel": normal(up_key, (experts, dim, mlp_dim))},
            "down": {"kernel": normal(down_key, (experts, mlp_dim, dim), residual_scale)},
        }
    }


def _layer_of(config: MoeConfig) -> Callable[..., HiddenAndBalance]:
    def apply_layer(params, values, key):
        hidden, balance_loss = values
        attended = fused_causal_attention(params["attention"], layer_norm(params["norm_1"], hidden))
        hidden = hidden + dropout(attended, config.dropout_rate, fold(key, 0))
        normed = layer_norm(params["norm_2"], hidden)
        if "experts" in params:
            mixed, layer_balance_loss = _experts(params["experts"], normed, config, fold(key, 2))
            balance_loss = balance_loss + layer_balance_loss
        else:
            mixed = mlp(params["mlp"], normed, activation=jax.nn.gelu)
        return hidden + dropout(mixed, config.dropout_rate, fold(key, 1)), balance_loss

    return apply_layer


def _experts(params: Params, hidden: Hidden, config: MoeConfig, key: PRNGKeyArray | None) -> HiddenAndBalance:
    logits = linear(params["router"], hidden.astype(jnp.float32), "bsd,de->bse")
    combine, balance_loss = top2_gating(
        logits, capacity=config.capacity(hidden.shape[1]), second_key=key if config.random_second_expert else None
    )
    dispatch = (combine > 0).astype(hidden.dtype)
    expert_inputs = jnp.einsum("bsec,bsd->ebcd", dispatch, hidden)
    up = jax.nn.relu(linear(params["up"], expert_inputs, "ebcd,edm->ebcm"))
    expert_outputs = linear(params["down"], up, "ebcm,emd->ebcd")
    return jnp.einsum("bsec,ebcd->bsd", combine.astype(hidden.dtype), expert_outputs), balance_loss
