"""The rest of the tests of `RemoteMesh.distributed`, and sharded state, on actors of several devices."""

import pytest

from tests.pipeline import test_data_parallel_state
from tests.runtime import test_distributed
from tests.runtime.ray import test_distributed_on_ray
from tests.runtime.ray.borrow_tests import borrow_tests

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.slow]

globals().update(borrow_tests(test_distributed, only=test_distributed_on_ray.SLOW))
globals().update(borrow_tests(test_data_parallel_state, only=("test_numbers_are_those_of_plain_jax",)))


@pytest.fixture(scope="module")
def mesh(shared_meshes):
    return shared_meshes["wide"]


@pytest.fixture(scope="module")
def wide_mesh(mesh):
    return mesh
