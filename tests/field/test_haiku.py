"""Haiku: a transformer's feed-forward blocks, and recurrent nets; found by the scopes that Haiku records."""

import jax
import jax.numpy as jnp
import pytest

import jaxquard as jq
from jaxquard.errors import MarkError
from tests.field.pipelined import MICROBATCHES, check_model

hk = pytest.importorskip("haiku")
pytestmark = pytest.mark.filterwarnings("ignore")

WIDTH = 8


def loss_of(forward, example):
    model = hk.without_apply_rng(hk.transform(forward))

    def loss(params, x):
        return jnp.mean(model.apply(params, x) ** 2)

    return loss, model.init(jax.random.key(0), example)


def blocks(x):
    for number in range(3):
        with hk.experimental.name_scope(f"block_{number}"):
            x = x + hk.Linear(WIDTH, name="down")(jax.nn.gelu(hk.Linear(2 * WIDTH, name="up")(x)))
    return hk.Linear(3)(x)


def recurrent(x):
    """Two layers, each a scan over time."""
    for number in range(2):
        core = hk.LSTM(WIDTH, name=f"lstm_{number}")
        x, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
    return hk.Linear(3)(x)


def test_blocks():
    x = jax.random.normal(jax.random.key(1), (MICROBATCHES, 4, WIDTH))
    check_model(*loss_of(blocks, x[0]), x, "block_*", num_stages=3)


def test_recurrent_nets():
    x = jax.random.normal(jax.random.key(1), (MICROBATCHES, 5, 2, WIDTH))
    check_model(*loss_of(recurrent, x[0]), x, "lstm_0", num_stages=2, rows_dim=2)


def test_a_layer_inside_a_step_of_time():
    """Both layers in one scan over time: no stage can end between them."""

    def deep(x):
        core = hk.DeepRNN([hk.LSTM(WIDTH, name="lstm_0"), hk.LSTM(WIDTH, name="lstm_1")])
        return hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))[0]

    x = jnp.ones((5, 2, WIDTH))
    loss, params = loss_of(deep, x)
    with pytest.raises(MarkError, match=r"'deep_rnn.lstm_0' is a part of the lax.scan at .* no stage can end"):
        jq.mark_layers(loss, "deep_rnn.lstm_0")(params, x)
