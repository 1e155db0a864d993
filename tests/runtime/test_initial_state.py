"""`RemoteMesh.init`: state is computed when the first step says where it belongs, each actor its own part."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import jaxquard as jq
from jaxquard.errors import DeletedArrayError

NUM_LAYERS, WIDTH = 5, 4


@pytest.fixture(scope="module")
def mesh():
    with jq.RemoteMesh((2,), spmd_mesh=(2,), spmd_axis_names=("model",)) as mesh:
        yield mesh


def init_state(key, scale=1.0):
    first, second = jax.random.split(key)
    params = {
        "embedding": scale * jax.random.normal(first, (6, WIDTH)),
        "layers": {
            "kernel": jax.vmap(lambda k: jax.random.normal(k, (WIDTH, WIDTH)))(jax.random.split(second, NUM_LAYERS)),
            "bias": jnp.zeros((NUM_LAYERS, WIDTH)),
        },
        "head": jax.random.normal(second, (WIDTH, 6)),
    }
    return {"params": params, "opt": optax.adam(0.1).init(params), "key": key, "rate": jnp.float32(0.1)}


def loss_fn(params, microbatch):
    hidden = params["embedding"][microbatch["tokens"]]
    body = lambda h, layer: (jnp.tanh(h @ layer["kernel"] + layer["bias"]), None)  # noqa: E731
    hidden, _ = jq.pipeline_scan(body, hidden, params["layers"], num_stages=2)
    logits = hidden @ params["head"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), microbatch["targets"][..., None], axis=-1))


def train_step(state, batch):
    def microbatch_grads(microbatch):
        value, grads = jax.value_and_grad(loss_fn)(state["params"], microbatch)
        return grads, value

    grads, losses = jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(2))(batch)
    updates, opt = optax.adam(state["rate"]).update(grads, state["opt"], state["params"])
    return {**state, "params": optax.apply_updates(state["params"], updates), "opt": opt}, losses


def make_batch():
    tokens = np.random.default_rng(0).integers(0, 6, size=(3, 2, 3))
    return {"tokens": tokens, "targets": (tokens + 1) % 6}


@pytest.fixture(scope="module")
def step(mesh):
    columns = PartitionSpec(None, "model")
    params = {
        "embedding": columns,
        "layers": {"kernel": PartitionSpec(None, None, "model"), "bias": columns},
        "head": PartitionSpec(),
    }
    return mesh.distributed(
        train_step, in_shardings=({"params": params, "opt": None, "key": None, "rate": None}, None), donate_argnums=0
    )


def actors_of(array):
    return [(part.start, part.stop, part.actors) for part in array.placement]


def test_each_actor_builds_its_own_part(mesh, step):
    key = jax.random.key(0)
    state = mesh.init(init_state, key)
    expected = init_state(key)
    assert repr(state["params"]["head"]) == "RemoteArray(float32[4,6], not placed yet)"
    assert jax.tree.map(jnp.shape, expected) == jax.tree.map(lambda leaf: leaf.shape, state)
    assert state["key"].dtype == key.dtype
    state, losses = step(state, make_batch())
    assert actors_of(state["params"]["embedding"]) == [(0, 6, (0,))]
    assert actors_of(state["params"]["head"]) == [(0, WIDTH, (1,))]
    layers = [(0, 3, (0,)), (3, 5, (1,))]
    adam = state["opt"][0]
    for found in (state["params"]["layers"], adam.mu["layers"], adam.nu["layers"]):
        assert {name: actors_of(leaf) for name, leaf in found.items()} == {"kernel": layers, "bias": layers}
    assert state["params"]["layers"]["kernel"].placement[1].spec == PartitionSpec(None, None, "model")
    expected, expected_losses = jax.jit(train_step)(expected, make_batch())
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_allclose(
        state["params"]["layers"]["kernel"], expected["params"]["layers"]["kernel"], rtol=1e-4, atol=1e-4
    )
    state, losses = step(state, make_batch())
    np.testing.assert_allclose(losses, jax.jit(train_step)(expected, make_batch())[1], rtol=1e-4)
    assert state["key"].fetch() == key


def test_no_actor_computes_more_than_its_part(mesh, step):
    """The buffers that exist after `init` and a step's planning are those of the parts."""
    state = mesh.init(init_state, jax.random.key(0))
    kernel = state["params"]["layers"]["kernel"]
    assert not kernel.is_placed
    step(state, make_batch())
    shapes = [part.type.shape for part in kernel.parts]
    assert shapes == [(3, WIDTH, WIDTH), (2, WIDTH, WIDTH)]
    assert [len(part.copies) for part in kernel.parts] == [1, 1]


def test_a_leaf_that_is_read_before_any_step(mesh, step):
    key = jax.random.key(3)
    state = mesh.init(init_state, key)
    expected = init_state(key)
    np.testing.assert_allclose(state["params"]["layers"]["kernel"], expected["params"]["layers"]["kernel"], rtol=1e-6)
    assert state["params"]["layers"]["kernel"].is_placed
    assert not state["params"]["embedding"].is_placed, "only what is read is computed"
    state, losses = step(state, make_batch())
    np.testing.assert_allclose(losses, jax.jit(train_step)(expected, make_batch())[1], rtol=1e-5)
    assert actors_of(state["params"]["layers"]["kernel"]) == [(0, 3, (0,)), (3, 5, (1,))]


def test_state_is_fetched_whole_and_taken_once(mesh, step):
    state = mesh.init(init_state, jax.random.key(1), 0.5)
    after, _ = step(state, make_batch())
    assert state["params"]["head"].is_deleted()
    with pytest.raises(DeletedArrayError, match=r"argument \[0\]\['key'\] was donated to an earlier step"):
        step(state, make_batch())
    fetched = jax.device_get(after)
    assert jax.tree.structure(fetched) == jax.tree.structure(after)
    assert fetched["params"]["layers"]["kernel"].shape == (NUM_LAYERS, WIDTH, WIDTH)


def test_arguments_and_closed_over_arrays(mesh):
    table = jnp.arange(4.0)

    def init(offset, options):
        return {"a": table + offset, "b": options["scale"] * jnp.ones(2), "c": offset, "d": 3}

    state = mesh.init(init, jnp.float32(1), {"scale": 2})
    doubled = mesh.distributed(lambda state: jax.tree.map(lambda leaf: leaf * 2, state))(state)
    found = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), doubled)
    assert found == {"a": [2, 4, 6, 8], "b": [4, 4], "c": 2, "d": 6}
    assert np.asarray(state["a"]).tolist() == [1, 2, 3, 4], "not donated, so still there"
