"""Actors that span two processes: state in shards on both, keys, fetching, checkpoints, failures."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import jaxquard as jq
from jaxquard.errors import ActorFailed
from tests.pipeline.oracle import assert_close
from tests.runtime.checkpoint.training import bits, distribute, init_state, make_batch, make_train_step, train
from tests.runtime.ray.processes import kill, wait_until
from tests.runtime.test_distributed import expected_sgd, fetched, make_weights, sgd_step
from tests.runtime.test_distributed import make_batch as make_sgd_batch

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def mesh():
    with jq.RemoteMesh(
        (2,), spmd_mesh=(2,), spmd_axis_names=("model",), runtime="ray", processes_per_actor=2, heartbeat_timeout_s=30
    ) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def step(mesh):
    return distribute(mesh, 2)


@pytest.mark.slow
def test_training_with_sharded_state_and_keys(mesh, step, tmp_path):
    state = mesh.init(init_state, KEY)
    expected = init_state(KEY)
    plain = jax.jit(make_train_step(2))
    for _ in range(2):
        state, losses = step(state, make_batch())
        expected, expected_losses = plain(expected, make_batch())
        np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    assert state["params"]["layers"].placement[1].spec == PartitionSpec(None, None, "model")
    np.testing.assert_allclose(state["params"]["layers"], expected["params"]["layers"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state["params"]["embedding"], expected["params"]["embedding"], rtol=1e-4, atol=1e-4)
    assert state["key"].fetch() == KEY

    found = bits(state)
    jq.save(tmp_path / "a", state).wait()
    state, losses = train(step, state, 2)
    again = jq.restore(tmp_path / "a", like=state)
    assert bits(again) == found
    np.testing.assert_array_equal(np.stack(train(step, again, 2)[1]), np.stack(losses))
    assert bits(jq.restore(tmp_path / "a", like=jax.jit(init_state)(KEY))) == found
    with jq.RemoteMesh((4,), spmd_mesh=(1, 2), spmd_axis_names=("data", "model")) as other:
        state = jq.restore(tmp_path / "a", like=other.init(init_state, KEY))
        np.testing.assert_allclose(np.stack(train(distribute(other, 4), state, 2)[1]), np.stack(losses), rtol=1e-5)


def test_whole_and_sharded_arguments(mesh):
    step = mesh.distributed(sgd_step, in_shardings=(PartitionSpec(None, "model"), PartitionSpec()), donate_argnums=0)
    weights, batch = make_weights(), make_sgd_batch()
    state, _ = step(weights, batch)
    state, losses = step(state, batch)
    assert_close(fetched((state, losses)), expected_sgd(expected_sgd(weights, batch)[0], batch))


@pytest.mark.slow
def test_one_of_two_processes_dies(mesh, step, tmp_path):
    state, _ = train(step, mesh.init(init_state, KEY), 1)
    jq.save(tmp_path / "a", state).wait()
    state, losses = train(step, state, 2)
    mesh.engine.monitor.timeout_s = 10.0
    kill(mesh, 1, rank=1)
    with pytest.raises(ActorFailed) as caught:
        train(step, state, 1000)
    assert caught.value.actor == 1
    wait_until(lambda: 1 in mesh.engine.group.losses)
    mesh.engine.monitor.timeout_s = 30.0
    assert mesh.restart() == (1,)
    state = jq.restore(tmp_path / "a", like=mesh.init(init_state, KEY))
    np.testing.assert_array_equal(np.stack(train(step, state, 2)[1]), np.stack(losses))
