"""The tests of `RemoteMesh.distributed` again, on actors that are processes."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.runtime import test_distributed
from tests.runtime.ray.borrow_tests import borrow_tests

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

# They are like others, or of the controller alone.
SLOW = (
    "test_a_new_shape_retraces",
    "test_a_stage_graph_with_everything_on_the_engine",
    "test_numbers_and_keywords",
    "test_other_schedules_on_the_engine",
    "test_static_arguments",
    "test_two_loops_in_a_step",
    "test_shardings_that_do_not_fit",
)
globals().update(
    borrow_tests(
        test_distributed,
        but=(
            *SLOW,
            # They call back into Python, which another process has not.
            "test_callbacks_run_once_for_each_microbatch",
            "test_an_error_in_a_task_names_it",
            # They make meshes of their own, in this process.
            "test_meshes_that_cannot_be",
            "test_too_few_devices_on_an_accelerator",
            "test_a_closed_mesh",
        ),
    )
)


@pytest.fixture(scope="module")
def mesh(shared_meshes):
    return shared_meshes["narrow"]


@pytest.fixture(scope="module")
def wide_mesh(shared_meshes):
    return shared_meshes["wide"]


@pytest.fixture(scope="module")
def named_mesh(wide_mesh):
    """The actors' devices are elsewhere; a mesh of this process stands for theirs."""
    devices = np.array(jax.devices()[:4]).reshape(wide_mesh.spmd_shape)
    return Mesh(devices, wide_mesh.spmd_axis_names)


def test_shardings_on_the_abstract_mesh(wide_mesh):
    shardings = NamedSharding(wide_mesh.abstract_mesh, PartitionSpec("model", "data"))
    step = wide_mesh.distributed(lambda x: x + 1, in_shardings=shardings, out_shardings=shardings)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    found = step(x)
    assert found.placement[0].spec == PartitionSpec("model", "data")
    np.testing.assert_array_equal(found, x + 1)
