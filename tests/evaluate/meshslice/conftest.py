"""All results, computed once for the tests of this folder."""

import pytest

from jaxquard.evaluate.meshslice import Reproduction, reproduce_meshslice


@pytest.fixture(scope="session")
def results() -> Reproduction:
    return reproduce_meshslice()
