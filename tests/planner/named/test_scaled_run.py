"""Scaled models by name, run on 8 virtual devices under the shape of a plan, against one jit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import jaxquard as jq
from jaxquard.cli.plan.find_loss import find_loss
from jaxquard.models import zoo
from jaxquard.planner.named.plan_named import plan_named

SCALE, LEARNING_RATE = 1000, 0.1
# Megatron's choices; by the prices of CPUs rows are cheaper.
TENSOR_PARALLEL = {
    "llama3:405b": {
        "layers.*.attention.query": "columns",
        "layers.*.attention.out": "contracted",
        "layers.*.mlp.gate": "columns",
        "layers.*.mlp.down": "contracted",
    },
    "gpt3:175b": {
        "layers.*.attention.qkv": "columns",
        "layers.*.attention.out": "contracted",
        "layers.*.mlp.up": "columns",
        "layers.*.mlp.down": "contracted",
    },
}


def sgd(params, grads):
    return jax.tree.map(lambda param, grad: param - LEARNING_RATE * grad, params, grads)


def _synthetic_batch(model, **sizes):
    return model.module.synthetic_batch(jax.random.key(1), model.config, **sizes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gpt3:175b", "llama2:70b", "llama3:405b", "mixtral:8x7b", "deepseek:16b", "bert:large"]
)
def test_a_scaled_model_under_a_plans_shape_equals_one_jit(name):
    fix = {"stages": 4, "schedule": "1f1b", "tensor": 1, "context": 1, "microbatches": 4, "storage": "as used"}
    plan = plan_named(name, "cpu-8", global_batch=16, scale=SCALE, fix=fix | {"expert": 1})
    model = zoo.scale_model(zoo.find_model(name), SCALE)
    schedule = jq.schedules.make_schedule(plan.schedule, num_stages=plan.num_stages)
    batch = _synthetic_batch(model, num_microbatches=plan.num_microbatches, microbatch_size=plan.microbatch_size)

    def train_step(params, batch):
        def microbatch_grads(microbatch):
            stages = {"mark": jq.pipeline_yield, "num_stages": plan.num_stages}
            loss, grads = jax.value_and_grad(model.module.loss)(params, microbatch, model.config, **stages)
            return grads, loss

        grads, losses = jq.accumulate_grads(microbatch_grads, schedule)(batch)
        return sgd(params, grads), jnp.mean(losses)

    @jax.jit
    def plain_step(params, batch):
        def total(params):
            return sum(
                model.module.loss(params, jax.tree.map(lambda leaf, row=row: leaf[row], batch), model.config)
                for row in range(plan.num_microbatches)
            )

        loss, grads = jax.value_and_grad(total)(params)
        return sgd(params, grads), loss / plan.num_microbatches

    params = jax.jit(model.module.init, static_argnums=1)(jax.random.key(0), model.config)
    expected_params, expected = plain_step(params, batch)
    shape = {"spmd_mesh": tuple(plan.axes.values()), "spmd_axis_names": tuple(plan.axes)}
    with jq.RemoteMesh((plan.num_actors,), **shape) as mesh:
        step = mesh.distributed(train_step, in_shardings=(P(), P(None, "data")))
        new_params, loss = step(params, batch)
        np.testing.assert_allclose(np.asarray(loss), expected, rtol=1e-5)
        for found, wanted in zip(jax.tree.leaves(new_params), jax.tree.leaves(expected_params), strict=True):
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3:405b", "gpt3:175b"])
def test_a_scaled_model_under_a_plan_with_a_tensor_axis_equals_one_jit(name):
    """The shape is that of the plan by name; the shardings are found for the traced model, as `--scale` does."""
    fix = {"stages": 2, "schedule": "1f1b", "tensor": 2, "context": 1, "microbatches": 4, "storage": "as used"}
    shape = plan_named(name, "cpu-8", global_batch=16, scale=SCALE, fix=fix)
    assert dict(shape.axes) == {"data": 2, "tensor": 2}
    found = find_loss(name, batch_size=16, scale=SCALE)
    wishes = {
        "actors": shape.num_actors,
        "stages": shape.num_stages,
        "schedule": shape.schedule,
        "microbatches": shape.num_microbatches,
        "recompute": shape.recompute.value,
        "storage": shape.storage,
        "data": shape.axes["data"],
        "model": shape.axes["tensor"],
        **TENSOR_PARALLEL[name],
    }
    model = zoo.scale_model(zoo.find_model(name), SCALE)
    params = jax.jit(model.module.init, static_argnums=1)(jax.random.key(0), model.config)
    batch = jax.tree.map(lambda leaf: leaf[0], _synthetic_batch(model, num_microbatches=1, microbatch_size=16))
    optimizer = optax.sgd(LEARNING_RATE)

    @jax.jit
    def plain_step(params, batch):
        loss, grads = jax.value_and_grad(found.loss)(params, batch)
        return sgd(params, grads), loss

    expected_params, expected = plain_step(params, batch)
    with jq.parallelize(found.loss, optimizer, (params, batch), devices=8, fix=wishes, num_measured=0) as run:
        chosen = {names for stage in run.plan.stages for names in stage.strategies}
        assert {("rows", "columns"), ("rows", "contracted")} <= chosen
        assert (run.plan.num_actors, dict(run.plan.axes)) == (2, {"data": 2, "model": 2})
        state = run.init(lambda params: params, params)
        state, metrics = run.step(state, batch)
        np.testing.assert_allclose(np.asarray(metrics["loss"]), expected, rtol=1e-5)
        found_leaves = jax.tree.leaves(state["params"])
        for leaf, wanted in zip(found_leaves, jax.tree.leaves(expected_params), strict=True):
            np.testing.assert_allclose(np.asarray(leaf), wanted, rtol=1e-3, atol=1e-5)
