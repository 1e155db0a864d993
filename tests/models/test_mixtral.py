import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxquard.models import llama, mixtral
from tests.models import reference
from tests.models.check_dropout import check_dropout
from tests.models.counts import product_dtypes
from tests.models.test_llama import numpy_attention, numpy_norm

TINY = mixtral.MixtralConfig(
    vocab_size=31,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    model_dim=16,
    mlp_dim=24,
    sequence_length=8,
    num_experts=4,
    top_k=2,
    balance_weight=0.5,
    rotary_base=10000.0,
    dtype=jnp.float32,
)
CROWDED = dataclasses.replace(TINY, capacity_factor=0.25)
DEEPSEEK = dataclasses.replace(
    TINY, top_k=3, shared_mlp_dim=12, first_mlp_dim=40, normalises_gates=False, capacity_factor=4.0
)
DROPOUT = dataclasses.replace(TINY, dropout_rate=0.2)

loss = jax.jit(mixtral.loss, static_argnames=("config", "num_stages", "remat"))


def make(config):
    return reference.random_params(mixtral, config), reference.random_tokens(config)


def numpy_mlp(params, x, expert=slice(None)):
    gate, up, down = (params[name]["kernel"][expert] for name in ("gate", "up", "down"))
    gated = x @ gate
    return (gated / (1 + np.exp(-gated)) * (x @ up)) @ down


def numpy_experts(params, x, config, capacity):
    """Token by token: no masks, no places, only a count of who has come to each expert."""
    out, balance = np.zeros_like(x), []
    for row in range(len(x)):
        gates = reference.softmax(x[row] @ params["router"]["kernel"])
        choices = np.argsort(-gates, axis=-1)[:, : config.top_k]
        come = np.zeros(config.num_experts, int)
        for rank in range(config.top_k):
            for token, chosen in enumerate(choices):
                expert = chosen[rank]
                come[expert] += 1
                if come[expert] <= capacity:
                    total = gates[token, chosen].sum() if config.normalises_gates else 1
                    weight = gates[token, expert] / total
                    out[row, token] += weight * numpy_mlp(params, x[row, token], expert)
        balance.append(config.num_experts * np.sum(come / len(gates) / config.top_k * gates.mean(0)))
    return out, np.mean(balance)


def numpy_loss(params, microbatch, config, capacity):
    params = reference.to_float64(params)
    x, balance = params["embedding"][np.asarray(microbatch["tokens"])], 0.0
    for layer in params["layers"]:
        x = x + numpy_attention(layer["attention"], numpy_norm(layer["attention_norm"], x), config)
        y = numpy_norm(layer["mlp_norm"], x)
        if "mlp" in layer:
            x = x + numpy_mlp(layer["mlp"], y)
        if "experts" in layer:
            routed, layer_balance = numpy_experts(layer["experts"], y, config, capacity)
            x, balance = x + routed, balance + layer_balance
    logits = numpy_norm(params["final_norm"], x) @ params["head"].T
    return reference.cross_entropies(logits, microbatch["targets"]).mean() + config.balance_weight * balance


@pytest.mark.parametrize(
    ("config", "capacity"), [(CROWDED, 1), (TINY, 5), (DEEPSEEK, 24)], ids=["crowded", "even", "deepseek"]
)
def test_loss_against_numpy(config, capacity):
    params, microbatch = make(config)
    expected = numpy_loss(params, microbatch, config, capacity)
    np.testing.assert_allclose(loss(params, microbatch, config), expected, rtol=5e-6)


def test_the_first_layer_may_be_dense_and_experts_may_share_an_mlp():
    layers = make(DEEPSEEK)[0]["layers"]
    assert [sorted({"mlp", "experts"} & set(layer)) for layer in layers] == [["mlp"], *[["experts", "mlp"]] * 2]
    assert layers[0]["mlp"]["up"]["kernel"].shape == (16, 40)
    assert layers[1]["mlp"]["up"]["kernel"].shape == (16, 12)
    assert all("mlp" not in layer for layer in make(TINY)[0]["layers"])


def test_one_expert_is_a_llama():
    config = dataclasses.replace(TINY, num_experts=1, top_k=1, capacity_factor=1.0, balance_weight=0.0)
    params, microbatch = make(config)
    dense = {**params, "layers": [dict(layer) for layer in params["layers"]]}
    for layer in dense["layers"]:
        experts = layer.pop("experts")
        layer["mlp"] = {name: {"kernel": experts[name]["kernel"][0]} for name in ("gate", "up", "down")}
    fields = {field.name for field in dataclasses.fields(llama.LlamaConfig)}
    sizes = {name: getattr(config, name) for name in fields}
    expected = jax.jit(llama.loss, static_argnums=2)(dense, microbatch, llama.LlamaConfig(**sizes))
    np.testing.assert_allclose(loss(params, microbatch, config), expected, rtol=1e-6)


def test_products_compute_in_the_configs_dtype_and_gates_in_float32():
    dtypes = product_dtypes(mixtral, dataclasses.replace(TINY, dtype=jnp.bfloat16))
    assert dtypes.count(("float32", "float32")) == TINY.num_layers
    assert set(dtypes) == {("float32", "float32"), ("bfloat16", "bfloat16")}


def test_dropout():
    check_dropout(loss, *make(TINY), plain=TINY, dropout=DROPOUT)


@pytest.mark.slow
def test_gradients_reach_every_parameter():
    config = dataclasses.replace(DEEPSEEK, num_layers=2)
    params, microbatch = make(config)
    grads = jax.jit(jax.grad(functools.partial(mixtral.loss, config=config)))(params, microbatch)
    assert all(float(jnp.abs(grad).max()) > 0 for grad in jax.tree.leaves(grads))
