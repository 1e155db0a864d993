"""Mistakes of users with actors that are processes: one clear line each, and nothing half done."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import jaxquard as jq
from jaxquard.errors import DeletedArrayError, MeshError
from tests.runtime.ray import spinning_step
from tests.runtime.ray.processes import client_processes
from tests.runtime.test_distributed import make_batch, make_weights, sgd_step

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


def message(function, *args, error=MeshError, **kwargs):
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


# Meshes that cannot be.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"runtime": "rai"}, "runtime='rai' is not known. Use one of: 'in_process', 'ray'."),
        (
            {"runtime": "ray", "transport": "pigeon"},
            "transport='pigeon' is not known. Use one of: 'stream', 'transfer', 'collective'.",
        ),
        ({"runtime": "ray", "platform": "cpus"}, "platform='cpus' is not known. Use one of: 'cpu', 'gpu', 'tpu'."),
        (
            {"runtime": "ray", "processes_per_actor": 2},
            "processes_per_actor=2 must divide the 1 devices of an actor's mesh (1,).",
        ),
        (
            {"runtime": "ray", "processes_per_actor": 0},
            "processes_per_actor=0 must be a whole number, 1 or more.",
        ),
        (
            {"runtime": "ray", "heartbeat_timeout_s": 0},
            "heartbeat_timeout_s=0 must be a number of seconds, more than 0.",
        ),
        (
            {"runtime": "ray", "start_timeout_s": -1},
            "start_timeout_s=-1 must be a number of seconds, more than 0.",
        ),
        (
            {"runtime": "ray", "start_timeout_s": 0.01},
            "Ray could not be started on this host: its raylet did not register in time. Is the host busy? Give a "
            "larger start_timeout_s.",
        ),
        ({"start_timeout_s": 9}, "start_timeout_s=9 has no meaning with runtime='in_process'. Leave it out."),
        (
            {"runtime": "ray", "share_devices": True},
            "share_devices=True has no meaning with runtime='ray'. Leave it out.",
        ),
        ({"address": "auto"}, "address='auto' has no meaning with runtime='in_process'. Leave it out."),
        ({"platform": "cpu"}, "platform='cpu' has no meaning with runtime='in_process'. Leave it out."),
        (
            {"transport": "collective"},
            "transport='collective' has no meaning with runtime='in_process'. Leave it out.",
        ),
        (
            {"processes_per_actor": 2},
            "processes_per_actor=2 has no meaning with runtime='in_process'. Leave it out.",
        ),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_meshes_that_cannot_be(options, text):
    assert message(jq.RemoteMesh, (2,), **options) == text
    assert not client_processes()


def test_devices_have_no_meaning():
    text = message(jq.RemoteMesh, (2,), runtime="ray", devices=jax.devices()[:2])
    assert text.startswith("devices=[CpuDevice(id=0), CpuDevice(id=1)] has no meaning with runtime='ray'")


@pytest.mark.parametrize("address", ["ray://127.0.0.1:1", "127.0.0.1:1"])
def test_nobody_at_the_address(address):
    start_s = time.monotonic()
    text = message(jq.RemoteMesh, (2,), runtime="ray", address=address)
    assert text.startswith(f"No Ray cluster could be reached at {address}: connection refused. Is it running there")
    assert time.monotonic() - start_s < 60
    assert not client_processes()


def test_no_gpus_here():
    text = message(jq.RemoteMesh, (2,), runtime="ray", platform="gpu")
    assert text.startswith("2 actors need 2 × (1 CPU, 1 GPU), each on one host, but the Ray cluster has room for 0;")
    assert text.endswith('No host has a GPU: use platform="cpu", or start Ray where there are some.')
    assert not client_processes()


# On a mesh.


@pytest.fixture(scope="module")
def mesh(shared_meshes):
    return shared_meshes["narrow"]


def test_callbacks_in_a_task(mesh):
    def step(batch):
        def outputs(x):
            hidden = jq.pipeline_yield(jnp.tanh(x))
            jax.debug.print("mean {}", hidden.mean())
            return hidden

        return jq.accumulate_grads(outputs, spinning_step.SCHEDULE, "stack")(batch)

    assert message(mesh.distributed(step), make_batch()) == (
        "the task stage1_F calls back into Python (jax.debug.print, jax.pure_callback or their kind), and its actor is "
        'another process. Take the callback out, or use runtime="in_process".'
    )
    with pytest.raises(MeshError, match=r"the task before\.0 calls back into Python"):
        mesh.distributed(lambda x: jax.pure_callback(np.sin, x, x))(np.ones(2, np.float32))
    assert np.asarray(mesh.distributed(lambda x: x + 1)(np.ones(2))).tolist() == [2, 2], "the mesh goes on"


def test_a_collective_that_the_platform_has_not(mesh):
    """Refused here, before anything is sent."""
    lone = AbstractMesh((1,), mesh.spmd_axis_names, axis_types=(AxisType.Auto,))

    @mesh.distributed
    def step(x, sizes):
        def exchange(x, sizes):
            return jax.lax.ragged_all_to_all(
                x, jnp.zeros_like(x), 0 * sizes, sizes, 0 * sizes, sizes, axis_name=mesh.spmd_axis_names[0]
            )

        whole = PartitionSpec()
        return jax.shard_map(exchange, mesh=lone, in_specs=(whole, whole), out_specs=whole, check_vma=False)(x, sizes)

    text = message(step, np.ones((4, 2), np.float32), np.full(1, 4, np.int32))
    assert "uses jax.lax.ragged_all_to_all, which XLA has not on cpu." in text


def test_devices_of_other_processes(mesh):
    assert message(lambda: mesh.meshes) == (
        "the actors are other processes, and so are their devices. In shardings, use PartitionSpecs, or NamedShardings "
        "on mesh.abstract_mesh."
    )


def test_arrays_of_another_mesh_come_through_here(mesh):
    with jq.RemoteMesh((2,)) as other:
        array = other.distributed(lambda x: x + 1)(np.ones(2))
        found = mesh.distributed(lambda x: x + 1)(array)
        assert np.asarray(found).tolist() == [3, 3]
        assert np.asarray(other.distributed(lambda x: x + 1)(found)).tolist() == [4, 4]


def test_a_deleted_array(mesh):
    array = mesh.distributed(lambda x: x + 1)(np.ones(2))
    array.delete()
    with pytest.raises(DeletedArrayError):
        np.asarray(array)
    with pytest.raises(DeletedArrayError):
        mesh.distributed(lambda x: x + 1)(array)


# Several meshes, and closed ones.


def test_meshes_one_after_the_other_and_nested(shared_meshes, tmp_path):
    """The second is inside the first, which goes on when the second is closed."""
    outer = shared_meshes["narrow"]
    weights, batch = make_weights(32), make_batch(width=32)
    with jq.RemoteMesh((1,), runtime="ray") as inner:
        found = inner.distributed(lambda x: x * 2)(weights["first"])
        state, losses = outer.distributed(sgd_step)(weights, batch)
        np.testing.assert_array_equal(found, 2 * weights["first"])
        np.testing.assert_array_equal(
            inner.distributed(lambda x: x * 2)(state["first"]), 2 * np.asarray(state["first"])
        )
        increment = inner.distributed(lambda x: x + 1)
    closed = "the mesh is closed. Make a new one."
    assert message(increment, np.ones(2)) == closed
    assert message(inner.distributed(lambda x: x + 1), np.ones(2)) == closed
    assert message(inner.restart) == closed
    assert message(np.asarray, found) == closed
    assert message(jq.save, tmp_path / "never", {"x": found}) == closed
    inner.close()
    assert np.isfinite(np.asarray(losses)).all()
    assert np.isfinite(np.asarray(state["first"])).all()
    with jq.RemoteMesh((1,), runtime="ray") as third:
        np.testing.assert_array_equal(third.distributed(lambda x: x * 2)(weights["first"]), 2 * weights["first"])
