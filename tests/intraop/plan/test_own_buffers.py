"""No buffer is donated twice, and placing a state leaves the one that was placed alone.

Where one is donated twice, XLA ends the process on CPU, so those tests run in a process of their own, which they share.
"""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxquard.intraop.plan.call_arguments import with_own_buffers
from jaxquard.intraop.plan.search_sharding import search_sharding
from tests.intraop.fake_pricer import TIMES_MS, FakePricer
from tests.intraop.same_numbers import check_same
from tests.intraop.steps import inputs, mesh_of, weights

pytestmark = pytest.mark.usefixtures("quick_compilation")

# Data parallelism is the cheapest, so all state is whole on every device.
LIKES_ROWS = TIMES_MS | {"rows": 1}


def momentum(state, batch):
    """Two moments that begin as the same zeros."""
    grads = jax.grad(lambda params: jnp.mean((batch @ params["w"]) ** 2))(state["p"])
    first = jax.tree.map(lambda old, grad: 0.9 * old + grad, state["m"], grads)
    second = jax.tree.map(lambda old, grad: 0.5 * old + grad, state["v"], grads)
    params = jax.tree.map(lambda param, a, b: param - 0.1 * (a + b), state["p"], first, second)
    return {"p": params, "m": first, "v": second}, jnp.sum(params["w"])


def make_state():
    params = {"w": jnp.asarray(weights(w=(16, 32))["w"])}
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"p": params, "m": zeros, "v": zeros}


def plan_for(state, batch):
    found = search_sharding(momentum, (state, batch), mesh=mesh_of(x=8), pricer=FakePricer(times_ms=LIKES_ROWS))
    assert set(found.specs.values()) >= {PartitionSpec()}
    return found


BEGIN = """
import jax
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_disable_most_optimizations", True)
from tests.intraop.plan.test_own_buffers import *
"""
BEFORE_EACH = """
state, batch = make_state(), inputs(8, 16)
wanted = jax.jit(momentum)(state, batch)
plan = plan_for(state, batch)
"""


@pytest.fixture(scope="module")
def ended():
    """Runs all programs in one process, which prints the name of each before it."""
    runs = "".join(f"print('{name}', flush=True)\n{BEFORE_EACH}{lines}" for name, lines in PROGRAMS.items())
    program = f"{BEGIN}{runs}print('end', flush=True)\n"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


PROGRAMS = {
    "test_a_state_with_one_array_in_two_leaves_is_trained": """
step = plan.apply(momentum)
check_same(step(plan.shard(state), batch), wanted)
check_same(step(state, batch), wanted)
whole = NamedSharding(mesh_of(x=8), PartitionSpec())
for _ in range(2):
    placed = jax.tree.map(lambda leaf: jax.device_put(leaf, whole), make_state())
    check_same(step(placed, batch), wanted)
""",
    "test_also_after_a_call_that_failed_or_was_traced": """
step = plan.apply(momentum)
whole = NamedSharding(mesh_of(x=8), PartitionSpec())
placed = jax.tree.map(lambda leaf: jax.device_put(leaf, whole), make_state())
jax.eval_shape(lambda batch: step(placed, batch), batch)
run = step._compiled._jitted

def interrupted(*_):
    raise KeyboardInterrupt

step._compiled._jitted = interrupted
try:
    step(placed, batch)
except KeyboardInterrupt:
    step._compiled._jitted = run
check_same(step(placed, batch), wanted)
""",
    "test_an_array_that_the_step_closes_over_is_not_taken": """
def pulled_back(state, batch, first=state["p"]):
    state, value = momentum(state, batch)
    return state | {"p": jax.tree.map(lambda new, old: new + 0.1 * old, state["p"], first)}, value

wanted = jax.jit(pulled_back)(state, batch)
plan = search_sharding(pulled_back, (state, batch), mesh=mesh_of(x=8), pricer=FakePricer(times_ms=LIKES_ROWS))
step = plan.apply(pulled_back)
whole = NamedSharding(mesh_of(x=8), PartitionSpec())
for _ in range(2):
    check_same(step(make_state() | {"p": state["p"]}, batch), wanted)
    # Another array over the same memory.
    check_same(step(make_state() | {"p": jax.device_put(state["p"], whole)}, batch), wanted)
""",
    "test_a_leaf_that_shares_the_buffer_of_a_result": """
step = plan.apply(momentum)
state, _ = step(state, batch)
state, _ = step(state, batch)
explicit = jax.make_mesh((8,), ("x",))
weights = jax.device_put(state["p"], NamedSharding(explicit, state["p"]["w"].sharding.spec))
given = state | {"m": weights}
wanted = jax.jit(momentum)(jax.tree.map(np.asarray, given), batch)
check_same(step(given, batch), wanted)
""",
}


def check_ran(ended, name):
    """Checks that the process came as far as the next program."""
    begun = ended.stdout.split()
    assert name in begun, f"an earlier program ended the process: {ended.stderr[-2000:]}"
    assert begun[-1] != name, ended.stderr[-2000:]


def test_a_state_with_one_array_in_two_leaves_is_trained(ended):
    """Where the user placed it, the leaves are different arrays, which share the buffer on the first device."""
    check_ran(ended, "test_a_state_with_one_array_in_two_leaves_is_trained")


def test_also_after_a_call_that_failed_or_was_traced(ended):
    """They donate nothing, so what they were given is no better known than before."""
    check_ran(ended, "test_also_after_a_call_that_failed_or_was_traced")


def test_the_state_that_was_placed_is_there_for_the_next_use():
    state, batch = make_state(), inputs(8, 16)
    plan = plan_for(state, batch)
    step = plan.apply(momentum)
    placed, _ = step(plan.shard(state), batch)
    step(placed, batch)
    check_same(jax.jit(momentum)(state, batch), jax.jit(momentum)(make_state(), batch))


def test_also_where_it_was_placed_before():
    state, batch = make_state(), inputs(8, 16)
    plan = plan_for(state, batch)
    once = plan.shard(state)
    plan.apply(momentum)(plan.shard(once), batch)
    check_same(once, state)


def test_an_array_of_numpy_may_be_written_to_afterwards():
    state = jax.tree.map(np.array, make_state())
    plan = plan_for(state, inputs(8, 16))
    placed = plan.shard(state)
    state["p"]["w"] += 1
    check_same(placed["p"], make_state()["p"])


def test_an_array_that_the_step_closes_over_is_not_taken(ended):
    check_ran(ended, "test_an_array_that_the_step_closes_over_is_not_taken")


def test_a_leaf_that_shares_the_buffer_of_a_result(ended):
    """On a mesh of another type of axes the array is another one, over the same memory."""
    check_ran(ended, "test_a_leaf_that_shares_the_buffer_of_a_result")


def test_only_arrays_that_share_a_buffer_are_copied():
    whole = NamedSharding(mesh_of(x=8), PartitionSpec())
    array = jnp.ones(16)
    placed = [jax.device_put(array, whole), jax.device_put(array, whole), jax.device_put(jnp.ones(16), whole)]
    found = with_own_buffers(placed, places=[0, 1, 2])
    assert [one is other for one, other in zip(found, placed, strict=True)] == [True, False, True]
    beside = with_own_buffers(placed, places=[1, 2])
    assert [one is other for one, other in zip(beside, placed, strict=True)] == [True, False, True]
