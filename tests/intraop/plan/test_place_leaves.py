"""Only what is new at its place is looked at and moved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.call_arguments import LeafPlacer
from jaxquard.intraop.plan.search_sharding import search_sharding
from tests.intraop.fake_pricer import FakePricer
from tests.intraop.same_numbers import check_same
from tests.intraop.steps import inputs, mesh_of, weights

pytestmark = pytest.mark.usefixtures("quick_compilation")


def train(state, batch):
    grads = jax.grad(lambda params: jnp.mean((jnp.tanh(batch @ params["a"]) @ params["b"]) ** 2))(state["params"])
    params = jax.tree.map(lambda param, grad: param - 0.1 * grad, state["params"], grads)
    return {"params": params, "count": state["count"] + 1}, jnp.sum(params["a"])


def make_state():
    return {"params": jax.tree.map(jnp.asarray, weights(a=(16, 32), b=(32, 16))), "count": jnp.zeros((), jnp.int32)}


@pytest.fixture
def plan():
    return search_sharding(train, (make_state(), inputs(8, 16)), mesh=mesh_of(x=8), pricer=FakePricer())


@pytest.fixture
def new_leaves(monkeypatch):
    """The number of new leaves, call by call."""
    found, original = [], LeafPlacer.new_leaves

    def count(self, leaves):
        places = original(self, leaves)
        found.append(len(places))
        return places

    monkeypatch.setattr(LeafPlacer, "new_leaves", count)
    return found


def test_in_a_loop_it_is_the_batch_alone(plan, new_leaves):
    step, state, wanted = plan.apply(train), plan.shard(make_state()), make_state()
    for number in range(5):
        batch = np.asarray(inputs(8, 16)) + number
        state, value = step(state, batch)
        wanted, expected = jax.jit(train)(wanted, batch)
        check_same((state, value), (wanted, expected))
    assert new_leaves == [4, 1, 1, 1, 1]


def test_a_batch_that_lies_as_the_last_one_did_is_not_new(plan, new_leaves):
    step, state = plan.apply(train), plan.shard(make_state())
    batch = jax.device_put(inputs(8, 16), NamedSharding(mesh_of(x=8), plan.specs["argument 1"]))
    for _ in range(4):
        state, _ = step(state, batch)
    assert new_leaves == [4, 0, 0, 0]


@pytest.mark.parametrize(
    "move",
    [
        np.asarray,
        jax.device_get,
        lambda leaf: jnp.array(np.asarray(leaf)),
        lambda leaf: jax.device_put(leaf, NamedSharding(mesh_of(x=8), PartitionSpec())),
        lambda leaf: jax.device_put(np.asarray(leaf), jax.devices()[3]),
    ],
)
def test_what_was_moved_in_between_is_moved_back(plan, move):
    step, state, wanted = plan.apply(train), plan.shard(make_state()), make_state()
    batch = inputs(8, 16)
    for number in range(6):
        state = jax.tree.map(move, state) if number in {2, 3, 5} else state
        state, _ = step(state, batch)
        wanted, _ = jax.jit(train)(wanted, batch)
        check_same(state, wanted)


def test_another_type_is_refused_in_any_call(plan):
    step, state = plan.apply(train), plan.shard(make_state())
    for _ in range(3):
        state, _ = step(state, inputs(8, 16))
    with pytest.raises(ShardingError, match="another step: argument 1 was"):
        step(state, inputs(16, 16))
    with pytest.raises(ShardingError, match="'count'"):
        step(state | {"count": jnp.zeros((), jnp.float32)}, inputs(8, 16))
    with pytest.raises(TypeError, match="planned for arguments"):
        step(state["params"], inputs(8, 16))
    step(state, inputs(8, 16))


def test_inside_of_another_program_nothing_is_remembered(plan, new_leaves):
    step, batch, wanted = plan.apply(train), inputs(8, 16), make_state()
    state = plan.shard(make_state())

    @jax.jit
    def twice(state):
        return step(step(state, batch)[0], batch)[0]

    for _ in range(2):
        wanted = jax.jit(train)(wanted, batch)[0]
    jax.eval_shape(lambda batch: step(state, batch), batch)
    check_same(twice(state), wanted)
    new_leaves.clear()
    check_same(step(step(state, batch)[0], batch)[0], wanted)
    assert new_leaves[0] == 4


@pytest.mark.parametrize("donate", [True, False])
def test_a_batch_on_a_mesh_with_explicit_axes_is_moved_every_time(plan, donate):
    step, state, wanted = plan.apply(train, donate=donate), plan.shard(make_state()), make_state()
    explicit = jax.make_mesh((8,), ("x",))
    batch = jax.device_put(np.asarray(inputs(8, 16)), NamedSharding(explicit, plan.specs["argument 1"]))
    for _ in range(3):
        state, _ = step(state, batch)
        wanted, _ = jax.jit(train)(wanted, np.asarray(inputs(8, 16)))
        check_same(state, wanted)


def test_whatever_the_batch_is_there_is_one_program(plan):
    step, state = plan.apply(train), plan.shard(make_state())
    there = NamedSharding(mesh_of(x=8), plan.specs["argument 1"])
    host = np.asarray(inputs(8, 16))
    for batch in (jnp.asarray(host), host, jax.device_put(host, there), jax.device_put(host, jax.devices()[2]), host):
        state, _ = step(state, batch)
    assert step._compiled._jitted._cache_size() == 1


def test_every_set_of_weak_leaves_is_asked_about_once():
    """Also where one of them is known from the last call, and only the other is new."""

    def step(state, x, y, batch):
        return {"w": state["w"] - 0.1 * state["w"]}, jnp.sum(batch @ state["w"]) + x + y

    whole = NamedSharding(mesh_of(x=8), PartitionSpec())
    strong, weak = (jax.device_put(value, whole) for value in (jnp.float32(1), jnp.asarray(1.0)))
    assert (strong.weak_type, weak.weak_type) == (False, True)
    state, batch = {"w": jnp.ones((16, 8))}, np.ones((8, 16), np.float32)
    plan = search_sharding(step, (state, strong, strong, batch), mesh=mesh_of(x=8), pricer=FakePricer())
    applied, state, asked = plan.apply(step), plan.shard(state), []
    state, _ = applied(state, strong, strong, batch)
    applied._compiled._check = lambda args: asked.append((args[1].weak_type, args[2].weak_type))
    pairs = [(strong, strong), (strong, weak), (weak, strong), (weak, weak), (strong, weak), (weak, weak)]
    for x, y in pairs:
        state, _ = applied(state, x, y, batch)
    assert asked == [(False, True), (True, False), (True, True)]
