"""Settings of JAX that change after the mesh has started reach the actors: both engines do the same."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq
from jaxquard.errors import TaskFailed
from tests.runtime.ray.processes import call_inside

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


@contextlib.contextmanager
def setting(name, value):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


@pytest.fixture(params=["in_process", "ray"])
def mesh(request, shared_meshes):
    if request.param == "ray":
        yield shared_meshes["narrow"]
    else:
        with jq.RemoteMesh((2,)) as mesh:
            yield mesh


@pytest.mark.parametrize(("name", "bad"), [("jax_debug_nans", -1.0), ("jax_debug_infs", 0.0)])
def test_checks_that_are_set_after_the_start(mesh, name, bad):
    step = mesh.distributed(jnp.log)
    x = np.array([1.0, bad], np.float32)
    assert not np.isfinite(np.asarray(step(x))[1])
    with setting(name, True):
        with pytest.raises(TaskFailed, match=f"made a value that is {name.removeprefix('jax_debug_')[:-1]}"):
            np.asarray(step(x))
        np.testing.assert_allclose(np.asarray(step(np.ones(2, np.float32))), 0)
    assert not np.isfinite(np.asarray(step(x))[1])


def test_a_check_of_the_calling_thread_alone(mesh):
    step = mesh.distributed(jnp.log)
    x = np.array([1.0, -1.0], np.float32)
    for _ in range(2):
        with jax.debug_nans(True), pytest.raises(TaskFailed, match="made a value that is nan"):
            np.asarray(step(x))
        assert np.isnan(np.asarray(step(x))[1])


def test_they_reach_every_actor_with_the_next_program(shared_meshes, tmp_path):
    mesh = shared_meshes["narrow"]

    def read(_):
        return jax.config.jax_compilation_cache_dir

    with setting("jax_compilation_cache_dir", str(tmp_path)):
        mesh.distributed(lambda x: x + 3)(np.ones(3, np.float32))
        assert [call_inside(mesh, actor, read) for actor in range(2)] == [[str(tmp_path)]] * 2
        # Also if they are started again.
        assert dict(mesh.engine.group.config.settings)["jax_compilation_cache_dir"] == str(tmp_path)


@pytest.mark.slow
def test_code_is_traced_with_the_settings_of_the_call(mesh):
    """Those that change a task's code are part of it: 64-bit values, the precision of products."""
    step = mesh.distributed(lambda x: x / 3)
    x = np.ones(2)
    assert np.asarray(step(x)).dtype == np.float32
    with setting("jax_enable_x64", True):
        np.testing.assert_array_equal(np.asarray(step(x)), x / 3)
    assert np.asarray(step(x)).dtype == np.float32
