"""Flax's 8-bit floats: scales and histories of largest values are carried from microbatch to microbatch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxquard as jq
from tests.pipeline.oracle import accumulate, assert_close
from tests.pipeline.planning import with_schedule


class Perceptron(nn.Module):
    """Two stages; each product rounds its operands, and the gradient of its result, to 8 bits."""

    op: type[nn.Module]

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(8, dot_general_cls=self.op, name="first")(x))
        return nn.Dense(4, dot_general_cls=self.op, name="second")(jq.pipeline_yield(x))


def make_step(model):
    def loss_fn(params, scales, x):
        return jnp.mean(jnp.square(model.apply({"params": params, "_overwrite_with_gradient": scales}, x) - 1))

    def train_step(accumulate, state, batch):
        def microbatch_grads(scales, x):
            loss, (grads, scales) = jax.value_and_grad(loss_fn, (0, 1))(state["params"], scales, x)
            return scales, (grads, loss)

        scales, (grads, losses) = accumulate(microbatch_grads, ("mean", "stack"), carry=state["scales"])(batch)
        params = jax.tree.map(lambda param, grad: param - 0.1 * grad, state["params"], grads)
        return {"params": params, "scales": scales}, losses

    return train_step


@pytest.mark.filterwarnings("ignore:The Fp8DotGeneralOp is deprecated")
@pytest.mark.parametrize(
    ("op", "schedule"),
    [
        (nn.Fp8DotGeneralOp, jq.schedules.OneFOneB(2)),
        pytest.param(nn.Fp8DotGeneralOp, jq.schedules.ZeroBubbleH1(2), marks=pytest.mark.slow),
        pytest.param(nn.Fp8DirectDotGeneralOp, jq.schedules.OneFOneB(2), marks=pytest.mark.slow),
        pytest.param(nn.Fp8DirectDotGeneralOp, jq.schedules.ZeroBubbleH1(2), marks=pytest.mark.slow),
    ],
)
def test_two_steps(op, schedule):
    model = Perceptron(op)
    batch = np.random.default_rng(0).normal(size=(3, 4, 8)).astype(np.float32)
    variables = jax.jit(model.init)(jax.random.key(0), batch[0])
    state = {"params": variables["params"], "scales": variables["_overwrite_with_gradient"]}
    step = make_step(model)
    on_one_device = jax.jit(lambda state, batch: step(accumulate, state, batch))
    expected = on_one_device(on_one_device(state, batch)[0], batch)
    with jq.RemoteMesh((2,)) as mesh:
        distributed = mesh.distributed(with_schedule(step, schedule))
        found = distributed(distributed(state, batch)[0], batch)
        homes = [
            {leaf.placement[0].actors for leaf in jax.tree.leaves([tree[name] for tree in found[0].values()])}
            for name in ("first", "second")
        ]
        assert_close(jax.tree.map(jnp.asarray, jax.device_get(found)), expected)
    assert homes == [{(0,)}, {(1,)}]
