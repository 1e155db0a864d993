"""The end of the time for a batch: what compiles then is ended, and what has no price fails as late."""

import math
import time

import jax
import pytest

from jaxquard.pricing import CompilePricer, Failure, FailureReason, Price, PriceCache
from tests.machine_pace import machine_pace
from tests.pricing.programs import product, quick_pricer

LINE = jax.sharding.AbstractMesh((8,), ("x",))
PROGRAMS = [product(8 * n) for n in range(1, 12)]


def are_late(found):
    return all(isinstance(one, Failure) and one.reason is FailureReason.NO_TIME for one in found)


def compiling(cache=None):
    return CompilePricer("cpu-8", LINE, cache=cache)


def measuring(cache=None):
    return quick_pricer(cache, num_compilers=2)


@pytest.mark.parametrize("make", [compiling, measuring])
def test_at_the_end_nothing_begins(make):
    start_s = time.monotonic()
    with make() as pricer:
        found = pricer.price_all(PROGRAMS, end_s=start_s)
    assert are_late(found)
    assert {one.message for one in found} == {"the time was over"}
    assert time.monotonic() - start_s < 2 * max(1.0, machine_pace())


@pytest.mark.parametrize("make", [compiling, measuring])
def test_what_compiles_at_the_end_is_ended(make):
    """A process takes more than half a second to start."""
    start_s = time.monotonic()
    with make() as pricer:
        assert are_late(pricer.price_all(PROGRAMS, end_s=start_s + 0.5))
        assert time.monotonic() - start_s < 0.5 + 2 * max(1.0, machine_pace())
        # Another call has processes again.
        assert isinstance(pricer.price_all(PROGRAMS[:1])[0], Price)


@pytest.mark.parametrize("make", [compiling, measuring])
def test_prices_that_are_known_are_there_at_any_time(make, tmp_path):
    with make(PriceCache(tmp_path)) as pricer:
        first = pricer.price_all(PROGRAMS[:2])
        again = pricer.price_all(PROGRAMS[:3], end_s=time.monotonic())
    assert again[:2] == first
    assert are_late(again[2:])


def test_loops_and_comparisons_end_as_well():
    with measuring() as pricer:
        assert are_late(pricer.compare(PROGRAMS, end_s=time.monotonic()))
        assert are_late(pricer.price_loops(PROGRAMS, budget_s=math.inf, end_s=time.monotonic()))
