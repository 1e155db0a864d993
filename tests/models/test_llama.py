import cmath
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxquard.models import llama
from tests.models import reference
from tests.models.check_dropout import check_dropout
from tests.models.counts import product_dtypes

TINY = llama.LlamaConfig(
    vocab_size=31,
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    model_dim=16,
    mlp_dim=24,
    sequence_length=8,
    dtype=jnp.float32,
)
GROUPED = dataclasses.replace(TINY, num_kv_heads=2)
SHARED = dataclasses.replace(TINY, num_kv_heads=1)
DROPOUT = dataclasses.replace(TINY, dropout_rate=0.2)

loss = jax.jit(llama.loss, static_argnames=("config", "num_stages", "remat"))


def make(config):
    return reference.random_params(llama, config), reference.random_tokens(config)


def numpy_norm(params, x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * params["scale"]


def numpy_rotate(x):
    """Turns number i and number i + half of the head, as one complex number, by the position's angle."""
    half = x.shape[-1] // 2
    turned = np.zeros_like(x)
    for position in range(len(x)):
        for i in range(half):
            angle = position * 10000 ** (-i / half)
            pair = complex(x[position, i], x[position, i + half]) * cmath.exp(1j * angle)
            turned[position, i], turned[position, i + half] = pair.real, pair.imag
    return turned


def numpy_attention(params, x, config):
    out = np.zeros_like(x)
    for row in range(len(x)):
        for head in range(config.num_heads):
            kv_head = head * config.num_kv_heads // config.num_heads
            query = x[row] @ params["query"]["kernel"][:, head]
            key = x[row] @ params["key"]["kernel"][:, kv_head]
            value = x[row] @ params["value"]["kernel"][:, kv_head]
            attended = reference.attend(numpy_rotate(query), numpy_rotate(key), value, causal=True)
            out[row] += attended @ params["out"]["kernel"][head]
    return out


def numpy_loss(params, microbatch, config):
    params = reference.to_float64(params)
    x = params["embedding"][np.asarray(microbatch["tokens"])]
    for layer in params["layers"]:
        x = x + numpy_attention(layer["attention"], numpy_norm(layer["attention_norm"], x), config)
        y = numpy_norm(layer["mlp_norm"], x)
        gate = y @ layer["mlp"]["gate"]["kernel"]
        up = y @ layer["mlp"]["up"]["kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * up) @ layer["mlp"]["down"]["kernel"]
    logits = numpy_norm(params["final_norm"], x) @ params["head"].T
    return reference.cross_entropies(logits, microbatch["targets"]).mean()


@pytest.mark.parametrize("config", [TINY, GROUPED, SHARED], ids=["4 kv heads", "2 kv heads", "1 kv head"])
def test_loss_against_numpy(config):
    params, microbatch = make(config)
    assert params["layers"][0]["attention"]["key"]["kernel"].shape == (16, config.num_kv_heads, 4)
    np.testing.assert_allclose(loss(params, microbatch, config), numpy_loss(params, microbatch, config), rtol=3e-6)


def test_grouped_queries_equal_repeated_weights():
    params, microbatch = make(GROUPED)
    repeated = jax.tree.map(lambda leaf: leaf, params)
    for layer in repeated["layers"]:
        for name in ("key", "value"):
            kernel = layer["attention"][name]["kernel"]
            layer["attention"][name]["kernel"] = jnp.repeat(kernel, 2, axis=1)
    grouped = loss(params, microbatch, GROUPED)
    np.testing.assert_allclose(grouped, loss(repeated, microbatch, TINY), rtol=1e-6)


def test_no_biases():
    params, _ = make(TINY)
    names = {path[-1].key for path, _ in jax.tree.leaves_with_path(params["layers"])}
    assert names == {"kernel", "scale"}


@pytest.mark.parametrize("config", [TINY, GROUPED], ids=["all heads", "grouped"])
def test_products_in_bfloat16(config):
    config = dataclasses.replace(config, dtype=jnp.bfloat16)
    products = product_dtypes(llama, config)
    assert len(products) == config.num_layers * 9 + 1
    assert set(products) == {("bfloat16", "bfloat16")}


def test_dropout_needs_a_key_and_differs_by_key():
    check_dropout(loss, *make(DROPOUT), plain=TINY, dropout=DROPOUT)


def test_layers_share_no_table():
    """Nothing but the hidden state passes from one layer to the next, so a stage needs nothing else."""
    params, microbatch = make(TINY)
    marked = []

    def mark(hidden):
        marked.append(hidden)
        return jax.lax.stop_gradient(hidden)

    stopped = functools.partial(llama.loss, config=TINY, mark=mark, num_stages=2)
    grads = jax.jit(jax.grad(stopped))(params, microbatch)
    assert [hidden.shape for hidden in marked] == [(3, 8, 16)]
    assert all(not leaf.any() for leaf in jax.tree.leaves((grads["embedding"], grads["layers"][0])))
    assert all(leaf.any() for leaf in jax.tree.leaves(grads["layers"][1]))
