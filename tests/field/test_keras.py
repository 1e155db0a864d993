"""Keras on JAX, and models of KerasHub: found by the names of their layers."""

import os

import jax
import jax.numpy as jnp
import pytest

from tests.field.pipelined import MICROBATCHES, check_model, next_token_loss, random_tokens

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras")
pytestmark = pytest.mark.filterwarnings("ignore")

WIDTH, VOCAB = 8, 32


def loss_of(model, value):
    """The loss of a model as a function of its trainable variables."""
    rest = [variable.value for variable in model.non_trainable_variables]

    def loss(params, x):
        return value(model.stateless_call(params, rest, x)[0], x)

    return loss, [variable.value for variable in model.trainable_variables]


def test_layers():
    keras.utils.set_random_seed(0)
    x = hidden = keras.Input((WIDTH,))
    for number in range(3):
        hidden = hidden + keras.layers.Dense(WIDTH, activation="gelu", name=f"dense_{number}")(hidden)
    model = keras.Model(x, keras.layers.Dense(3, name="head")(hidden))
    x = jax.random.normal(jax.random.key(1), (MICROBATCHES, 4, WIDTH))
    check_model(*loss_of(model, lambda y, x: jnp.mean(y**2)), x, ["dense_0", "dense_1"], num_stages=3)


def token_batch():
    tokens = random_tokens(VOCAB)
    return {"token_ids": tokens, "padding_mask": jnp.ones_like(tokens)}


def hidden_loss(hidden, batch):
    """The loss of a backbone, whose output has no head."""
    return next_token_loss(hidden @ jnp.eye(16, VOCAB), batch["token_ids"])


def test_llama_of_keras_hub():
    hub = pytest.importorskip("keras_hub")
    keras.utils.set_random_seed(0)
    backbone = hub.models.LlamaBackbone(
        vocabulary_size=VOCAB,
        num_layers=3,
        num_query_heads=2,
        num_key_value_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
    )
    check_model(*loss_of(backbone, hidden_loss), token_batch(), "transformer_layer_*", num_stages=3)


def mixtral():
    """Every token goes to two of four experts."""
    hub = pytest.importorskip("keras_hub")
    keras.utils.set_random_seed(0)
    backbone = hub.models.MixtralBackbone(
        vocabulary_size=VOCAB,
        num_layers=4,
        num_query_heads=4,
        num_key_value_heads=2,
        num_experts=4,
        hidden_dim=16,
        intermediate_dim=32,
    )
    return loss_of(backbone, hidden_loss)


def test_mixtral_of_keras_hub():
    check_model(*mixtral(), token_batch(), "transformer_layer_*", num_stages=4)


def rwkv_7():
    """Each layer is a scan over time, and needs the values of the first, which cross every boundary."""
    hub = pytest.importorskip("keras_hub")
    keras.utils.set_random_seed(0)
    backbone = hub.models.RWKV7Backbone(
        vocabulary_size=VOCAB,
        hidden_size=16,
        head_size=8,
        num_layers=4,
        intermediate_dim=32,
        gate_lora=4,
        mv_lora=4,
        aaa_lora=4,
        decay_lora=4,
    )

    def value(logits, batch):
        return next_token_loss(logits, batch["token_ids"])

    return loss_of(backbone, value)


def test_rwkv_7_of_keras_hub():
    check_model(*rwkv_7(), token_batch(), "rwkv_layer_*", num_stages=4)
