"""Haiku and Keras on actors that are processes: these get lowered code, and need neither package."""

import jax
import jax.numpy as jnp
import pytest

import jaxquard as jq
from tests.field.pipelined import MICROBATCHES, find_models, make_plain_step, random_tokens
from tests.pipeline.layers.test_mark_layers import step_of
from tests.pipeline.oracle import assert_close
from tests.pipeline.planning import with_schedule

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def mesh():
    with jq.RemoteMesh((2,), runtime="ray", heartbeat_timeout_s=60) as mesh:
        yield mesh


def lstm():
    haiku = find_models("test_haiku", "haiku")
    x = jax.random.normal(jax.random.key(1), (MICROBATCHES, 5, 2, haiku.WIDTH))
    return *haiku.loss_of(haiku.recurrent, x[0]), x, "lstm_0"


def mixtral():
    tokens = random_tokens(32)
    batch = {"token_ids": tokens, "padding_mask": jnp.ones_like(tokens)}
    return *find_models("test_keras", "keras_hub").mixtral(), batch, "transformer_layer_1"


@pytest.mark.parametrize("model", [lstm, mixtral])
def test_two_steps(request, model):
    loss, params, batch, where = model()
    # Where the package of the model is not installed, no cluster starts.
    mesh = request.getfixturevalue("mesh")
    step = mesh.distributed(
        with_schedule(step_of(jq.mark_layers(loss, where)), jq.schedules.OneFOneB(2)), donate_argnums=0
    )
    plain_step = make_plain_step(loss)
    found, expected = params, params
    for _ in range(2):
        found, losses = step(found, batch)
        expected, expected_losses = plain_step(expected, batch)
    found = jax.tree.map(jnp.asarray, jax.device_get((found, losses)))
    assert_close(found, (expected, expected_losses))
