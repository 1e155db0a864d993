"""Shared by the tests of sharding."""

import jax
import pytest


@pytest.fixture
def quick_compilation():
    """The machine code is not optimised: what is tested is how a program is sharded, which comes before."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
