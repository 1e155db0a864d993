import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxquard.models import moe
from tests.models import reference
from tests.models.counts import product_dtypes

TINY = moe.MoeConfig(
    vocab_size=31,
    num_layers=3,
    num_heads=2,
    model_dim=16,
    sequence_length=8,
    num_experts=4,
    mlp_factor=2,
    balance_weight=0.5,
    dtype=jnp.float32,
)
CROWDED = dataclasses.replace(TINY, capacity_factor=0.5)
ROOMY = dataclasses.replace(TINY, capacity_factor=8.0)
DROPOUT = dataclasses.replace(TINY, dropout_rate=0.2)
RANDOM = dataclasses.replace(ROOMY, random_second_expert=True)

loss = jax.jit(moe.loss, static_argnames=("config", "num_stages", "remat"))


def make(config):
    return reference.random_params(moe, config), reference.random_tokens(config)


def numpy_attention(params, x, num_heads):
    out = np.zeros_like(x) + params["out"]["bias"]
    kernel, bias = params["qkv"]["kernel"], params["qkv"]["bias"]
    for row in range(len(x)):
        for head in range(num_heads):
            query, key, value = (x[row] @ kernel[:, n, head] + bias[n, head] for n in range(3))
            out[row] += reference.attend(query, key, value, causal=True) @ params["out"]["kernel"][head]
    return out


def numpy_experts(params, x, capacity):
    """Token by token: no masks, no places, only a count of who has come to each expert."""
    num_experts = params["router"]["kernel"].shape[-1]
    out, balance = np.zeros_like(x), []
    for row in range(len(x)):
        gates = reference.softmax(x[row] @ params["router"]["kernel"])
        choices = np.argsort(-gates, axis=-1)[:, :2]
        come = np.zeros(num_experts, int)
        for rank in (0, 1):
            for token, chosen in enumerate(choices):
                expert = chosen[rank]
                come[expert] += 1
                if come[expert] <= capacity:
                    up = np.maximum(x[row, token] @ params["up"]["kernel"][expert], 0)
                    weight = gates[token, expert] / gates[token, chosen].sum()
                    out[row, token] += weight * (up @ params["down"]["kernel"][expert])
            if rank == 0:
                balance.append(num_experts * np.sum(come / len(gates) * gates.mean(0)))
    return out, np.mean(balance)


def numpy_loss(params, microbatch, config, capacity):
    norm = functools.partial(reference.layer_norm, epsilon=1e-5)
    params = reference.to_float64(params)
    x = params["embedding"]["tokens"][np.asarray(microbatch["tokens"])] + params["embedding"]["positions"]
    balance = 0.0
    for number, layer in enumerate(params["layers"]):
        x = x + numpy_attention(layer["attention"], norm(layer["norm_1"], x), config.num_heads)
        y = norm(layer["norm_2"], x)
        if number % 2 == 0:
            y, layer_balance = numpy_experts(layer["experts"], y, capacity)
            balance += layer_balance
        else:
            up, down = layer["mlp"]["up"], layer["mlp"]["down"]
            y = reference.gelu_tanh(y @ up["kernel"] + up["bias"]) @ down["kernel"] + down["bias"]
        x = x + y
    logits = norm(params["final_norm"], x) @ params["embedding"]["tokens"].T
    return reference.cross_entropies(logits, microbatch["targets"]).mean() + config.balance_weight * balance


@pytest.mark.parametrize(
    ("config", "capacity"), [(CROWDED, 1), (TINY, 4), (ROOMY, 16)], ids=["crowded", "even", "roomy"]
)
def test_loss_against_numpy(config, capacity):
    params, microbatch = make(config)
    expected = numpy_loss(params, microbatch, config, capacity)
    np.testing.assert_allclose(loss(params, microbatch, config), expected, rtol=3e-6)


def test_a_full_expert_drops_tokens():
    params, microbatch = make(TINY)
    values = {float(loss(params, microbatch, config)) for config in (CROWDED, TINY, ROOMY)}
    assert len(values) == 3


def test_every_other_layer_has_experts():
    params, _ = make(TINY)
    assert ["experts" in layer for layer in params["layers"]] == [True, False, True]
    assert ["mlp" in layer for layer in params["layers"]] == [False, True, False]


def test_rows_of_the_batch_are_groups_of_their_own():
    params, microbatch = make(CROWDED)
    rows = [jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], microbatch) for row in range(3)]
    alone = np.mean([loss(params, row, CROWDED) for row in rows])
    np.testing.assert_allclose(loss(params, microbatch, CROWDED), alone, rtol=1e-6)


def test_experts_are_the_batch_dim_of_their_products():
    params, microbatch = make(TINY)
    jaxpr = jax.make_jaxpr(functools.partial(moe.loss, config=TINY))(params, microbatch)
    shapes = [
        (eqn.invars[0].aval.shape, eqn.invars[1].aval.shape)
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "dot_general" and eqn.params["dimension_numbers"][1] == ((0,), (0,))
    ]
    experts_first = [pair for pair in shapes if {pair[0][0], pair[1][0]} == {TINY.num_experts}]
    assert len(experts_first) == 2 * TINY.num_moe_layers


def test_products_in_bfloat16_but_the_router():
    config = dataclasses.replace(TINY, dtype=jnp.bfloat16)
    products = product_dtypes(moe, config)
    assert products.count(("float32", "float32")) == config.num_moe_layers
    assert set(products) == {("bfloat16", "bfloat16"), ("float32", "float32")}
    assert len(products) == 3 * 4 + 2 * 5 + 2 + 1


@pytest.mark.parametrize(("config", "without"), [(DROPOUT, TINY), (RANDOM, ROOMY)], ids=["dropout", "second expert"])
def test_what_is_random_needs_a_key_and_differs_by_key(config, without):
    params, microbatch = make(config)

    def value(seed):
        return float(loss(params, microbatch, config, key=jax.random.key(seed)))

    plain = float(loss(params, microbatch, without))
    assert float(loss(params, microbatch, config)) == plain
    assert value(1) == value(1)
    assert len({value(1), value(2), plain}) == 3


def test_a_mark_sees_the_hidden_state_and_the_balance_loss():
    params, microbatch = make(TINY)
    seen = []

    def mark(values):
        seen.append(jax.tree.map(jnp.shape, values))
        return values

    marked = functools.partial(moe.loss, config=TINY, mark=mark, num_stages=3)
    np.testing.assert_allclose(jax.jit(marked)(params, microbatch), loss(params, microbatch, TINY), rtol=1e-6)
    assert seen == [((3, 8, 16), ())] * 2


@pytest.mark.slow
def test_remat_changes_no_gradient():
    config = dataclasses.replace(TINY, num_layers=1)
    params, microbatch = make(config)
    grad = jax.jit(jax.grad(moe.loss), static_argnames=("config", "remat"))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, grad(params, microbatch, config, remat=True), grad(params, microbatch, config))
