"""Numbers that take the dtype of what they meet do so under a plan as in `jax.jit`, at every call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.intraop.step.traced_step import trace_step
from tests.intraop.fake_pricer import FakePricer
from tests.intraop.same_numbers import check_same
from tests.intraop.steps import inputs, mesh_of, weights

pytestmark = pytest.mark.usefixtures("quick_compilation")

LOW = 2**-7


def step(state, batch):
    """Its rate is part of its state, as in an optimizer with a schedule."""
    grads = jax.grad(lambda w: jnp.mean((batch @ w).astype(jnp.float32) ** 2))(state["w"])
    return {"w": state["w"] - state["rate"] * grads, "rate": state["rate"] * 0.9}, jnp.sum(grads)


def state_of(rate, dtype=jnp.bfloat16):
    return {"w": jnp.asarray(weights(w=(16, 32))["w"], dtype), "rate": rate}


def plan_for(state, batch):
    return search_sharding(step, (state, batch), mesh=mesh_of(x=8), pricer=FakePricer())


@pytest.fixture
def batch():
    return jnp.asarray(inputs(8, 16), jnp.bfloat16)


@pytest.mark.parametrize("make", [float, jnp.array, jnp.asarray, lambda rate: jnp.full((), rate), np.float32])
def test_dtypes_are_those_of_jit_at_every_call(make, batch):
    state = state_of(make(0.1), jnp.float32 if make is np.float32 else jnp.bfloat16)
    plan = plan_for(state, batch)
    sharded = plan.apply(step)
    placed, wanted = plan.shard(state), state
    for _ in range(3):
        placed, _ = sharded(placed, batch)
        wanted, _ = jax.jit(step)(wanted, batch)
        check_same(placed, wanted, tolerance=LOW)
        assert placed["rate"].weak_type == wanted["rate"].weak_type


def test_shapes_may_be_weak_too(batch):
    state = jax.eval_shape(lambda: state_of(jnp.array(0.1)))
    assert trace_step(step, (state, batch)).result_of_input == (0, 1, None)
    assert plan_for(state, batch).notes == ()


@pytest.mark.parametrize(("planned", "given"), [(0.1, jnp.float32(0.1)), (jnp.float32(0.1), 0.1)])
def test_a_state_out_of_a_checkpoint_will_do_where_the_results_have_the_same_types(planned, given, batch):
    state = state_of(given, jnp.float32)
    plan = plan_for(state_of(planned, jnp.float32), batch)
    check_same(plan.apply(step)(plan.shard(state), batch), jax.jit(step)(state, batch), tolerance=LOW)


@pytest.mark.parametrize("is_first", [True, False])
def test_where_they_have_others_it_is_refused_at_every_call(is_first, batch):
    plan = plan_for(state_of(0.1), batch)
    sharded = plan.apply(step, donate=False)
    if not is_first:
        sharded(state_of(0.1), batch)
    for _ in range(2):
        with pytest.raises(
            ShardingError, match=r"argument 0\['rate'\] was float32\[\] \(weak\) and is float32\[\]\. Search again"
        ):
            sharded(state_of(jnp.float32(0.1)), batch)
    sharded(state_of(0.2), batch)
