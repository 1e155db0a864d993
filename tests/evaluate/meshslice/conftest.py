"""All results, computed once for the tests of this folder."""

import pytest

from jaxquard.evaluate.meshslice import Reproduction
from tests.evaluate.meshslice.shared_results import meshslice_results


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> Reproduction:
    return meshslice_results(tmp_path_factory)
