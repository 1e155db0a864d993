"""Steps that run whole, for real: equal programs once, a failure by its name."""

from dataclasses import replace

import pytest
from jax.sharding import PartitionSpec as P

from jaxquard.evaluate.cfp.run.whole_steps import WholeSteps
from jaxquard.pricing.compile.compilers import CompileHere
from jaxquard.pricing.measure.runs.run_rounds import RunBudget
from tests.pricing.programs import line_mesh, product

BUDGET = RunBudget(num_warmups=1, num_runs=4, slow_factor=1e9, limit_s=60.0)
PROGRAMS = {
    "small": product(8),
    "large": product(256),
    "larger": product(1024),
    "small again": product(8, "under another name"),
    "nonsense": replace(product(16), in_specs=(P("y"), P())),
}


class CountingCompilers(CompileHere):
    def __init__(self, reported):
        self.reported = reported

    def start(self, lowered, **more):
        self.reported.append(lowered)
        return super().start(lowered, **more)


@pytest.fixture(scope="module")
def compiled():
    reported = []
    steps = WholeSteps(line_mesh(), compilers=CountingCompilers(reported))
    steps.compile(PROGRAMS, on_step=lambda *_: None)
    return steps, reported


def test_equal_programs_are_compiled_once(compiled):
    steps, reported = compiled
    assert len(reported) == 3
    assert steps["small"] is steps["small again"]
    assert steps["small"].program.name == "small"


def test_equal_programs_are_found(compiled):
    steps, _ = compiled
    assert steps.same_as(["small again", "large"]) == ["small again", "large", "small"]
    assert steps.same_as(["larger"]) == ["larger"]


def test_equal_programs_have_one_time_and_others_an_error_of_theirs(compiled):
    steps, _ = compiled
    found = steps.time(list(PROGRAMS), BUDGET, round_size=None, on_step=lambda *_: None)
    assert list(found) == list(PROGRAMS)
    assert found["small"] is found["small again"]
    for name in ("small", "large", "larger"):
        timing = found[name]
        assert timing.minimum_s > 0
        assert timing.error >= 0
        assert timing.failure is None
    assert found["small"].time_s < found["larger"].time_s


def test_what_does_not_compile_is_named(compiled):
    steps, _ = compiled
    (failure,) = (timing.failure for timing in steps.time(["nonsense"], BUDGET, round_size=8, on_step=print).values())
    assert failure.startswith("nonsense")
    assert steps["nonsense"].sent_bytes is None


def test_two_have_no_neighbours_to_estimate_an_error_by(compiled):
    steps, _ = compiled
    found = steps.time(["small", "large"], BUDGET, round_size=None, on_step=lambda *_: None)
    assert [timing.error for timing in found.values()] == [None, None]
