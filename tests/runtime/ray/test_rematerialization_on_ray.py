"""Warnings of XLA's partitioner in actors that are processes: counted, and reported in the log of this one."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


def make_loop(target):
    """The second stage goes from one sharding of its weights to another."""

    def loss(weights, x):
        hidden = jq.pipeline_yield(jnp.tanh(x @ weights["first"]))
        moved = jax.lax.with_sharding_constraint(jnp.sin(weights["second"]), target)
        return jnp.mean((hidden @ moved) ** 2)

    def step(weights, batch):
        return jq.accumulate_grads(lambda x: jax.grad(loss)(weights, x), jq.schedules.OneFOneB(2))(batch)

    return step


def test_values_that_are_gathered_whole_are_counted_and_reported(shared_meshes, caplog):
    mesh, engine = shared_meshes["wide"], shared_meshes["wide"].engine
    weights = {name: np.ones((64, 64), np.float32) for name in ("first", "second")}
    specs = {"first": jax.P(), "second": jax.P(None, ("data", "model"))}
    batch, before = np.ones((2, 8, 64), np.float32), engine.num_rematerialized
    for target, is_bad in ((specs["second"], False), (jax.P("data"), True)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="jaxquard"):
            mesh.distributed(make_loop(target), in_shardings=(specs, None))(weights, batch)
        assert (engine.num_rematerialized > before) == is_bad
        assert ("involuntary full rematerialization" in caplog.text) == is_bad
    assert "on actor 1." in caplog.text
