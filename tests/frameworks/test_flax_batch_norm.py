"""A residual net in Flax Linen: its batch statistics are carried from microbatch to microbatch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

import jaxquard as jq
from tests.pipeline.oracle import accumulate, assert_close
from tests.pipeline.planning import with_schedule


class Block(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        hidden = nn.Conv(4, (3, 3), use_bias=False)(inputs)
        hidden = nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9)(hidden))
        hidden = nn.Conv(4, (3, 3), use_bias=False)(hidden)
        return nn.relu(inputs + nn.BatchNorm(use_running_average=False, momentum=0.9)(hidden))


class ResNet(nn.Module):
    """Two stages; the blocks are recomputed if asked to. It centers its images by a mean that it has seen so far."""

    is_rematted: bool

    @nn.compact
    def __call__(self, images):
        block = nn.remat(Block) if self.is_rematted else Block
        mean = self.variable("batch_stats", "mean", lambda: jnp.zeros(3))
        images = images - mean.value
        mean.value = 0.9 * mean.value + 0.1 * jnp.mean(images, axis=(0, 1, 2))
        hidden = jq.pipeline_yield(block()(nn.Conv(4, (3, 3))(images)))
        return nn.Dense(2)(jnp.mean(block()(hidden), axis=(1, 2)))


def make_step(model):
    def loss_fn(params, stats, images):
        logits, updated = model.apply({"params": params, "batch_stats": stats}, images, mutable=["batch_stats"])
        return jnp.mean(jnp.square(logits - 1)), updated["batch_stats"]

    def train_step(accumulate, state, batch):
        def microbatch_grads(stats, images):
            (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state["params"], stats, images)
            return stats, (grads, loss)

        stats, (grads, losses) = accumulate(microbatch_grads, ("mean", "stack"), carry=state["stats"])(batch)
        updates, opt = optax.sgd(0.1, momentum=0.9).update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt, "stats": stats}, losses

    return train_step


@pytest.mark.parametrize(
    ("is_rematted", "num_devices"),
    [(False, 2), pytest.param(False, 1, marks=pytest.mark.slow), pytest.param(True, 2, marks=pytest.mark.slow)],
)
def test_two_steps(is_rematted, num_devices):
    model = ResNet(is_rematted=is_rematted)
    images = np.random.default_rng(0).normal(size=(3, 4, 4, 4, 3)).astype(np.float32)
    variables = jax.jit(model.init)(jax.random.key(0), images[0])
    params, stats = variables["params"], variables["batch_stats"]
    state = {"params": params, "opt": optax.sgd(0.1, momentum=0.9).init(params), "stats": stats}
    step = make_step(model)
    alone = jax.jit(functools.partial(step, accumulate))
    expected = alone(alone(state, images)[0], images)
    with jq.RemoteMesh((2,), spmd_mesh=(num_devices,), spmd_axis_names=("data",)) as mesh:
        distributed = mesh.distributed(
            with_schedule(step, jq.schedules.OneFOneB(2)),
            in_shardings=(P(), P(None, "data")),
            donate_argnums=0,
        )
        found = distributed(distributed(state, images)[0], images)
        homes = {path: leaf.placement[0].actors for path, leaf in jax.tree.leaves_with_path(found[0]["stats"])}
        assert_close(jax.tree.map(jnp.asarray, jax.device_get(found)), expected)
    actors = {jax.tree_util.keystr(path): actors for path, actors in homes.items()}
    block = "CheckpointBlock" if is_rematted else "Block"
    assert actors["['mean']"] == actors[f"['{block}_0']['BatchNorm_0']['mean']"] == (0,)
    assert actors[f"['{block}_1']['BatchNorm_1']['var']"] == (1,)
