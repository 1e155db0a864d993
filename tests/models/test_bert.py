import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxquard.models import bert
from tests.models import reference
from tests.models.check_dropout import check_dropout
from tests.models.counts import product_dtypes

TINY = bert.BertConfig(
    vocab_size=31, num_layers=2, num_heads=2, model_dim=16, sequence_length=8, mask_token=30, dtype=jnp.float32
)
DROPOUT = dataclasses.replace(TINY, dropout_rate=0.2)

loss = jax.jit(bert.loss, static_argnames=("config", "num_stages", "remat"))


def make(config):
    random = np.random.default_rng(1)
    shape = (3, config.sequence_length)
    microbatch = {
        "tokens": random.integers(0, config.vocab_size, shape),
        "segments": random.integers(0, config.num_segments, shape),
        "targets": random.integers(0, config.vocab_size, shape),
        "masked": random.integers(0, 2, shape),
    }
    return reference.random_params(bert, config), jax.tree.map(jnp.asarray, microbatch)


def numpy_attention(params, x, num_heads):
    out = np.zeros_like(x) + params["out"]["bias"]
    for row in range(len(x)):
        for head in range(num_heads):
            query, key, value = (
                x[row] @ params[name]["kernel"][:, head] + params[name]["bias"][head]
                for name in ("query", "key", "value")
            )
            out[row] += reference.attend(query, key, value, causal=False) @ params["out"]["kernel"][head]
    return out


def numpy_loss(params, microbatch, config):
    norm = functools.partial(reference.layer_norm, epsilon=1e-12)
    params, microbatch = reference.to_float64(params), jax.tree.map(np.asarray, microbatch)
    tables = params["embedding"]
    x = tables["tokens"][microbatch["tokens"]] + tables["positions"] + tables["segments"][microbatch["segments"]]
    x = norm(params["embedding_norm"], x)
    for layer in params["layers"]:
        x = norm(layer["attention_norm"], x + numpy_attention(layer["attention"], x, config.num_heads))
        up, down = layer["mlp"]["up"], layer["mlp"]["down"]
        y = reference.gelu_erf(x @ up["kernel"] + up["bias"]) @ down["kernel"] + down["bias"]
        x = norm(layer["mlp_norm"], x + y)
    x = reference.gelu_erf(x @ params["transform"]["kernel"] + params["transform"]["bias"])
    logits = norm(params["transform_norm"], x) @ tables["tokens"].T + params["head_bias"]
    losses = reference.cross_entropies(logits, microbatch["targets"])
    return losses[microbatch["masked"] == 1].mean()


def test_loss_against_numpy():
    params, microbatch = make(TINY)
    np.testing.assert_allclose(loss(params, microbatch, TINY), numpy_loss(params, microbatch, TINY), rtol=2e-6)


def test_only_masked_tokens_count():
    params, microbatch = make(TINY)
    elsewhere = jnp.where(microbatch["masked"] == 1, microbatch["targets"], (microbatch["targets"] + 1) % 31)
    assert loss(params, microbatch | {"targets": elsewhere}, TINY) == loss(params, microbatch, TINY)
    assert loss(params, microbatch | {"masked": jnp.zeros_like(elsewhere)}, TINY) == 0


def test_a_later_token_changes_an_earlier_guess():
    params, microbatch = make(TINY)
    first_only = microbatch | {"masked": jnp.zeros_like(microbatch["masked"]).at[:, 0].set(1)}
    changed = microbatch["tokens"].at[:, -1].add(1) % TINY.vocab_size
    assert loss(params, first_only | {"tokens": changed}, TINY) != loss(params, first_only, TINY)


def test_products_in_bfloat16():
    config = dataclasses.replace(TINY, dtype=jnp.bfloat16)
    products = product_dtypes(bert, config)
    assert len(products) == config.num_layers * 8 + 2
    assert set(products) == {("bfloat16", "bfloat16")}


def test_three_products_share_the_input_of_attention():
    params, microbatch = make(TINY)
    jaxpr = jax.make_jaxpr(functools.partial(bert.loss, config=TINY))(params, microbatch)
    products = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]
    assert len({eqn.invars[0] for eqn in products[:3]}) == 1


def test_dropout_needs_a_key_and_differs_by_key():
    check_dropout(loss, *make(DROPOUT), plain=TINY, dropout=DROPOUT)


def test_synthetic_batch_masks_as_many_tokens_in_every_row():
    config = bert.SIZES["bert-tiny"]
    batch = bert.synthetic_batch(jax.random.key(0), config, num_microbatches=2, microbatch_size=3)
    batch = jax.tree.map(np.asarray, batch)
    assert {name: values.shape for name, values in batch.items()} == dict.fromkeys(
        ("tokens", "segments", "targets", "masked"), (2, 3, 32)
    )
    assert set(batch["masked"].sum(-1).ravel()) == {5}
    masked = batch["masked"] == 1
    assert (batch["tokens"][masked] == config.mask_token).all()
    assert (batch["tokens"][~masked] == batch["targets"][~masked]).all()
    np.testing.assert_array_equal(batch["segments"][0, 0], [0] * 16 + [1] * 16)
    strides = np.diff(batch["targets"], axis=-1) % config.vocab_size
    assert (strides == strides[..., :1]).all()
