"""The example's training step against a plain loop on one device: state, losses, and the router's statistics."""

import functools
import importlib.util
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec

import jaxquard as jq
from tests.pipeline.oracle import assert_close

PATH = Path(__file__).parents[2] / "examples" / "mixture_of_experts.py"
SCHEDULES = {"1F1B": jq.schedules.OneFOneB(2), "ZB-V": jq.schedules.ZeroBubbleV(4)}


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("mixture_of_experts", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def mesh():
    with jq.RemoteMesh((2,), (2,), ("x",)) as mesh:
        yield mesh


def expected_step(example, state, batch, capacity):
    """A plain loop over the microbatches, everything on one device, without marks that mean anything."""
    loss = functools.partial(example.loss_fn, num_stages=1, capacity=capacity, axis=None)
    find = jax.jit(jax.value_and_grad(loss, has_aux=True))
    microbatches = [jax.tree.map(lambda leaf, m=m: leaf[m], batch) for m in range(len(batch["tokens"]))]
    found = [find(state["params"], microbatch) for microbatch in microbatches]

    @jax.jit
    def update(state, found):
        grads = jax.tree.map(lambda *grads: sum(grads) / len(found), *[grads for _, grads in found])
        updates, opt = example.optimizer.update(grads, state["opt"], state["params"])
        loads = jax.tree.map(lambda *loads: jnp.stack(loads), *[loads for (_, loads), _ in found])
        losses = jnp.stack([value for (value, _), _ in found])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, losses, loads

    return update(state, found)


def without_noise(results, moments):
    """Leaves out parameters whose gradient is zero (the bias of keys): Adam moves them by the sign of an error."""

    def known(param, moment):
        return jnp.where(jnp.abs(moment) > 1e-3 * jnp.max(jnp.abs(moment)), param, 0)

    state, *others = results
    return {**state, "params": jax.tree.map(known, state["params"], moments)}, *others


def check(example, mesh, schedule, capacity, *, axis="x", num_rows=4):
    state = jax.jit(lambda key: example.init_state(key))(jax.random.key(0))  # traced anew for other sizes
    tokens = jax.random.randint(jax.random.key(1), (4, num_rows, example.LENGTH + 1), 0, example.VOCABULARY)
    batch = {"tokens": tokens[..., :-1], "targets": tokens[..., 1:]}
    over_axis = PartitionSpec(axis)
    specs = jax.tree.map_with_path(lambda path, _: over_axis if "experts" in str(path) else None, state)
    step = mesh.distributed(
        functools.partial(example.train_step, schedule=schedule, capacity=capacity, axis=axis),
        in_shardings=(specs, PartitionSpec(None, axis)),
    )
    found, losses, loads = step(state, batch)
    results = jax.tree.map(jnp.asarray, jax.device_get((found, losses, loads)))
    expected = expected_step(example, state, batch, capacity)
    moments = expected[0]["opt"][0].mu
    assert_close(without_noise(results, moments), without_noise(expected, moments))
    experts = found["params"]["layers"][0]["experts"]["up"]
    assert experts.placement[0].spec == over_axis, "each device keeps its own experts"


def test_a_small_model(example, mesh):
    sizes = {"NUM_LAYERS": 2, "VOCABULARY": 8, "LENGTH": 4, "DIM": 8}
    block = {**example.BLOCK, "model_dim": 8, "num_heads": 2, "mlp_dim": 8, "num_experts": 2}
    with mock.patch.multiple(example, **sizes, BLOCK=block):
        check(example, mesh, SCHEDULES["1F1B"], None, num_rows=2)


@pytest.mark.slow
def test_two_layers(example, mesh):
    with mock.patch.object(example, "NUM_LAYERS", 2):
        check(example, mesh, SCHEDULES["1F1B"], None)


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [None, 9])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_and_variants(example, mesh, name, capacity):
    check(example, mesh, SCHEDULES[name], capacity)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", SCHEDULES)
def test_on_ray(example, name):
    pytest.importorskip("ray")
    with jq.RemoteMesh((2,), (2,), ("x",), runtime="ray") as mesh:
        check(example, mesh, SCHEDULES[name], None)
