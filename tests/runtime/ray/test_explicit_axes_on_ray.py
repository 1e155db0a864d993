"""Explicit axes on actors that are processes: types are gone once code is lowered, shardings are not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import jaxquard as jq

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

SPECS = {"first": PartitionSpec(None, "model"), "second": PartitionSpec("model")}


@pytest.fixture(scope="module")
def mesh(shared_meshes):
    return shared_meshes["explicit"]


def loss_fn(weights, x, reshard=lambda value, *spec: value):
    hidden = jq.pipeline_yield(jnp.tanh(x @ weights["first"]))
    return jnp.mean((reshard(hidden) @ reshard(weights["second"])) ** 2)


def typed_loss(weights, x):
    return loss_fn(weights, x, lambda value, *spec: jax.sharding.reshard(value, PartitionSpec(*spec)))


def test_types_cross_to_another_process(mesh):
    random = np.random.default_rng(0)
    weights = {
        "first": random.normal(size=(6, 8)).astype(np.float32),
        "second": random.normal(size=(8, 4)).astype(np.float32),
    }
    batch = random.normal(size=(4, 3, 6)).astype(np.float32)

    @functools.partial(mesh.distributed, in_shardings=(SPECS, None), donate_argnums=0)
    def step(weights, batch):
        grads, losses = jq.accumulate_grads(
            lambda x: jax.value_and_grad(typed_loss)(weights, x)[::-1], jq.schedules.OneFOneB(2)
        )(batch)
        return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), losses

    found, expected = weights, weights
    for _ in range(2):
        found, losses = step(found, batch)
        each = [jax.value_and_grad(loss_fn)(expected, x) for x in batch]
        expected = jax.tree.map(lambda w, *g: w - 0.1 * sum(g), expected, *[grads for _, grads in each])
    assert found["first"].placement[0].spec == SPECS["first"]
    np.testing.assert_allclose(np.asarray(losses), [loss for loss, _ in each], rtol=1e-5)
    for name, leaf in expected.items():
        np.testing.assert_allclose(np.asarray(found[name]), leaf, rtol=1e-5, atol=1e-6)
