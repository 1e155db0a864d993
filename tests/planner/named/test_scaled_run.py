"""Scaled models by name, run on 8 virtual devices under the shape of a plan, against one jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxquard as jq
from jaxquard.models import zoo
from jaxquard.planner.named.plan_named import plan_named

SCALE, LEARNING_RATE = 1000, 0.1


def sgd(params, grads):
    return jax.tree.map(lambda param, grad: param - LEARNING_RATE * grad, params, grads)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gpt3:175b", "llama2:70b", "llama3:405b", "mixtral:8x7b", "deepseek:16b", "bert:large"]
)
def test_a_scaled_model_under_a_plans_shape_equals_one_jit(name):
    fix = {"stages": 4, "schedule": "1f1b", "tensor": 1, "context": 1, "microbatches": 4, "storage": "as used"}
    plan = plan_named(name, "cpu-8", global_batch=16, scale=SCALE, fix=fix | {"expert": 1})
    model = zoo.scale_model(zoo.find_model(name), SCALE)
    schedule = jq.schedules.make_schedule(plan.schedule, num_stages=plan.num_stages)
    batch = model.module.synthetic_batch(
        jax.random.key(1),
        model.config,
        num_microbatches=plan.num_microbatches,
        microbatch_size=plan.microbatch_size,
    )

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
