"""Actors on a GPU or TPU; run with `JAX_PLATFORMS=cuda pytest tests/runtime/test_accelerator.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq
from tests.pipeline.oracle import accumulate

NUM_STAGES, WIDTH = 4, 16

pytestmark = pytest.mark.skipif(jax.default_backend() == "cpu", reason="needs an accelerator")


def init_params(key):
    return [jax.random.normal(key, (WIDTH, WIDTH)) * 0.3 for key in jax.random.split(key, NUM_STAGES)]


def loss_fn(params, microbatch):
    hidden = microbatch
    for stage, weight in enumerate(params):
        hidden = jnp.tanh(jnp.matmul(hidden, weight, precision="highest"))
        if stage < NUM_STAGES - 1:
            hidden = jq.pipeline_yield(hidden)
    return jnp.mean(hidden**2)


def train_step(loop, params, batch):
    def microbatch_grads(microbatch):
        value, grads = jax.value_and_grad(loss_fn)(params, microbatch)
        return grads, value

    grads, losses = loop(microbatch_grads)(batch)
    return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), losses


@pytest.mark.parametrize(
    "schedule",
    [jq.schedules.OneFOneB(4), jq.schedules.GPipe(4), jq.schedules.ZeroBubbleH1(4), jq.schedules.Interleaved(4, 2)],
    ids=repr,
)
def test_actors_that_share_a_device_train_as_plain_jax_does(schedule):
    batch = np.random.default_rng(0).normal(size=(6, 8, WIDTH)).astype(np.float32)
    with jq.RemoteMesh((schedule.num_actors,), share_devices=True) as mesh:
        step = mesh.distributed(
            lambda params, batch: train_step(lambda fn: jq.accumulate_grads(fn, schedule), params, batch),
            donate_argnums=(0,),
        )
        params, expected = mesh.init(init_params, jax.random.key(0)), init_params(jax.random.key(0))
        for _ in range(3):
            params, losses = step(params, batch)
            expected, expected_losses = train_step(accumulate, expected, batch)
            np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
        for found, wanted in zip(jax.device_get(params), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_failing_callback_names_its_task():
    def fail(_):
        raise RuntimeError("boom")

    def loss(params, microbatch):
        hidden = jq.pipeline_yield(microbatch * params)
        hidden = jax.pure_callback(fail, jax.ShapeDtypeStruct(hidden.shape, hidden.dtype), hidden)
        return jnp.sum(hidden)

    with jq.RemoteMesh((2,), share_devices=True) as mesh:
        evaluate = mesh.distributed(
            lambda params, batch: jq.accumulate_grads(lambda x: loss(params, x), jq.schedules.GPipe(2))(batch)
        )
        with pytest.raises(jq.errors.TaskFailed, match="1F0"):
            np.asarray(evaluate(np.float32(2.0), np.ones((3, 4), np.float32)))


def test_a_timeline_has_every_task():
    schedule = jq.schedules.OneFOneB(4)
    batch = np.ones((6, 8, WIDTH), np.float32)
    with jq.RemoteMesh((4,), share_devices=True) as mesh:
        step = mesh.distributed(
            lambda params, batch: train_step(lambda fn: jq.accumulate_grads(fn, schedule), params, batch),
            measure=True,
        )
        jax.block_until_ready(step(init_params(jax.random.key(0)), batch))
        names = {span.name for span in step.timeline().spans}
    assert {"0F0", "0B5", "3FB2"} <= names


def test_too_few_devices_are_refused():
    needed = len(jax.devices()) + 1
    with pytest.raises(jq.errors.MeshError, match=f"need {needed} devices.*share_devices=True"):
        jq.RemoteMesh((needed,))
