"""The arguments that plans run with: what the user gave, and values like those of a training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxquard as jq
from jaxquard.planner.search.make_arguments import make_arguments
from jaxquard.planner.search.problem import loss_problem, step_problem
from jaxquard.pricing.values import make_values
from jaxquard.schedules import AUTO

VOCABULARY, WIDTH = 512, 16


def loss(params, batch):
    hidden = jnp.tanh(params["table"][batch["tokens"]] @ params["out"])
    return jnp.mean((hidden - batch["targets"]) ** 2)


def make_params(value):
    return {"table": value((VOCABULARY, WIDTH)), "out": value((WIDTH, WIDTH))}


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


PARAMS = make_params(lambda shape: array(*shape))
BATCH = {"tokens": array(64, 8, dtype=jnp.int32), "targets": array(64, 8, WIDTH)}


@pytest.fixture
def mesh():
    with jq.RemoteMesh((1,), (2,), ("data",)) as mesh:
        yield mesh


def read(tree):
    return jax.tree.map(np.asarray, tree)


@pytest.mark.parametrize("large_bytes", [2**20, 64])
def test_weights_are_those_of_a_layer_and_tokens_are_of_the_whole_table(mesh, monkeypatch, large_bytes):
    """The same on the host and on the actors; the optimizer's state is as its init makes it."""
    monkeypatch.setattr(make_values, "_LARGE_BYTES", large_bytes)
    problem, _ = loss_problem(loss, optax.adam(1e-3), (PARAMS, BATCH))
    state, batch = make_arguments(problem, state=(0,), mesh=mesh)
    state = read(state)
    assert state["params"]["out"].std() == pytest.approx(WIDTH**-0.5, rel=0.2)
    assert state["params"]["table"].std() == pytest.approx(VOCABULARY**-0.5, rel=0.1)
    assert not any(leaf.any() for leaf in jax.tree.leaves(state["opt_state"]))
    assert 0 <= batch["tokens"].min() < VOCABULARY // 20
    assert VOCABULARY * 19 // 20 < batch["tokens"].max() < VOCABULARY
    types = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (state, batch))
    assert types == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tuple(problem.args))


def test_arrays_of_the_user_are_taken(mesh):
    params, targets = make_params(lambda shape: jnp.full(shape, 3.0)), np.full((64, 8, WIDTH), 2.0, np.float32)
    problem, _ = loss_problem(loss, optax.sgd(1e-3), (params, {**BATCH, "targets": targets}))
    state, batch = make_arguments(problem, state=(0,), mesh=mesh)
    assert (read(state)["params"]["out"] == 3).all()
    assert batch["targets"] is targets
    assert batch["tokens"].max() > 100
    jax.block_until_ready(params)  # They are the user's, still.


def test_of_a_step_of_the_users_own_second_moments_are_positive(mesh):
    def train_step(state, batch):
        def microbatch(one):
            return jax.grad(loss)(state["params"], one)

        grads = jq.accumulate_grads(microbatch, AUTO)(batch)
        squares = jax.tree.map(lambda v, g: 0.9 * v + 0.1 * g * g, state["squares"], grads)
        params = jax.tree.map(lambda w, g, v: w - g / (jnp.sqrt(v) + 1e-8), state["params"], grads, squares)
        return {"params": params, "squares": squares}

    batch = jax.tree.map(lambda leaf: array(4, *leaf.shape, dtype=leaf.dtype), BATCH)
    problem = step_problem(train_step, ({"params": PARAMS, "squares": PARAMS}, batch))
    state, _ = make_arguments(problem, state=(0,), mesh=mesh)
    state = read(state)
    assert all((leaf > 0).all() for leaf in state["squares"].values())
    assert all((leaf < 0).any() for leaf in state["params"].values())


def test_arrays_of_the_user_are_there_after_plans_ran():
    """State is donated to every step; what the user passed is not."""
    params = make_params(lambda shape: jax.device_put(jnp.full(shape, 0.1), jax.devices()[0]))
    batch = {"tokens": jnp.zeros((64, 8), jnp.int32), "targets": jnp.ones((64, 8, WIDTH))}
    options = {"num_measured": 1, "cache": None, "progress": False, "fix": {"actors": 1, "microbatches": 1}}
    for devices in (1, 2):
        with jq.parallelize(loss, optax.sgd(0.1), (params, batch), devices=devices, **options) as run:
            assert "measured" in run.plan.provenance
        assert all(not leaf.is_deleted() for leaf in jax.tree.leaves((params, batch)))
        assert (np.asarray(params["out"]) == np.float32(0.1)).all()
