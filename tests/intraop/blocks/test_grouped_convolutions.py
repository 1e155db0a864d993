"""Depthwise convolutions on two axes, where XLA's partitioner made the kernel's gradient 4 times too large."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxquard.intraop.shardings.baselines import baselines
from jaxquard.intraop.shardings.layouts import Storage
from tests.intraop.same_numbers import check_step
from tests.intraop.steps import analyse, inputs, mesh_of, random_assignment, sgd, weights

pytestmark = pytest.mark.usefixtures("quick_compilation")

CHANNELS = 16
AXES = {"data": 2, "model": 4}


def causal_step():
    """A convolution along the sequence, of each channel by itself, as state space models have it."""

    def loss(params, batch):
        x = batch @ params["in"]
        x = lax.conv_general_dilated(
            x, params["kernel"], (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=CHANNELS
        )
        return jnp.mean((jax.nn.silu(x) @ params["out"] - batch) ** 2)

    params = weights(**{"in": (8, CHANNELS), "kernel": (4, 1, CHANNELS), "out": (CHANNELS, 8)})
    return sgd(loss), (params, inputs(16, 8, 8))


def test_every_baseline_and_some_other_plans_give_the_same_numbers():
    step, args = causal_step()
    analysis = analyse(step, args, AXES)
    plans = {
        (tuple(found.assignment.items()), found.storage): found.assignment for found in baselines(analysis).values()
    }
    plans |= {(seed, Storage.ZERO_3): random_assignment(analysis, seed) for seed in range(3)}
    for (_, storage), assignment in plans.items():
        check_step(step, args, analysis, [assignment], mesh=mesh_of(**AXES), storage=storage)
