"""Prices of training loops: blocks, medians, fresh batches, a time budget."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxquard.pricing import Failure, FailureReason, LoopPricer, Price, PriceCache
from jaxquard.pricing.measure.runs.run_blocks import LoopBudget, run_blocks
from jaxquard.pricing.measure.runs.timed_program import TimedProgram
from jaxquard.pricing.measure.runs.watched_run import WatchedRun
from jaxquard.pricing.program.lower_program import lower_program
from tests.pricing.programs import array, line_mesh, make, product, quick_pricer


def steps_of(monkeypatch, *series):
    """Gives each program its own times, one series after the other as programs come; returns the order of runs."""
    order, times = [], {}
    waiting = iter(series)

    def run_step(self):
        if self not in times:
            times[self] = (len(times), iter(next(waiting)))
        number, left = times[self]
        order.append(number)
        return float(next(left))

    monkeypatch.setattr(TimedProgram, "run_step", run_step)
    return order


def training(size=8):
    """A step with state, which is donated, and a batch."""
    return make(
        lambda weight, batch: (weight + jnp.mean(batch @ weight), jnp.sum(batch)),
        array(size, size),
        array(2 * size, size),
        ins=(P(), P("x")),
        outs=(P(), None),
        donated=(0,),
        fresh=(1,),
        name="step",
    )


def test_blocks_of_each_in_turn_and_the_median_of_what_counts(monkeypatch):
    cold, warm = [50, 40], [3, 1, 2, 2, 2, 2, 2, 2, 9, 1]
    order = steps_of(monkeypatch, 3 * [*cold, *warm], 3 * [*cold, *(4 * time for time in warm)])
    budget = LoopBudget(block_s=1e6, slow_factor=100)
    programs = dict(enumerate([TimedProgram.__new__(TimedProgram) for _ in range(2)]))
    for timed in programs.values():
        timed.start_series()
    run_blocks(programs, budget=budget, watch=WatchedRun(), on_error=lambda *_: pytest.fail("none fails"))
    assert [(number, len(list(run))) for number, run in itertools.groupby(order)] == 3 * [(0, 12), (1, 12)]
    assert programs[0].times_s == 3 * warm


def test_the_price_is_the_median(monkeypatch):
    steps_of(monkeypatch, [0.1, 0.1, *([0.02] * 6 + [0.07] * 4)] * 3)
    (price,) = quick_pricer().price_loops([training()], budget_s=60)
    assert (price.time_s, price.provenance.num_runs) == (0.02, 30)
    assert isinstance(quick_pricer(), LoopPricer)


def test_a_slow_program_has_one_block_of_few_steps(monkeypatch):
    steps_of(monkeypatch, itertools.repeat(1e-3), itertools.repeat(2.0))
    fast, slow = quick_pricer().price_loops([product(8), product(16)], budget_s=60)
    assert (fast.provenance.num_runs, slow.provenance.num_runs) == (30, 2)
    assert slow.provenance.was_stopped_early


def test_the_batch_comes_from_the_host_and_the_state_goes_on():
    program = training()
    mesh = line_mesh()
    timed = TimedProgram(program, lower_program(program, mesh=mesh).compile(), mesh=mesh, shared={})
    weight, batch = (np.array(array) for array in timed._inputs)
    for number in range(3):
        before = timed._inputs[1]
        assert timed.run_step() > 0
        assert timed._inputs[1] is not before
        np.testing.assert_array_equal(timed._inputs[1], batch)
        weight = weight + np.mean(batch @ weight)
        np.testing.assert_allclose(timed._inputs[0], weight, rtol=1e-4, err_msg=str(number))


def test_without_time_nothing_is_compiled():
    found = quick_pricer().price_loops([product(8), product(16)], budget_s=0)
    assert all(isinstance(one, Failure) and one.reason is FailureReason.NO_TIME for one in found)
    assert found[0].message == "the time was over"


def test_what_fails_fails_alone(monkeypatch):
    real = TimedProgram.run_step

    def run_step(self):
        if self._inputs[0].shape[0] == 16:
            raise RuntimeError("it does not run")
        return real(self)

    monkeypatch.setattr(TimedProgram, "run_step", run_step)
    first, second, third = quick_pricer().price_loops([product(8), product(16), product(24)], budget_s=60)
    assert isinstance(first, Price)
    assert (second.reason, second.message) == (FailureReason.NO_RUN, "it does not run")
    assert isinstance(third, Price)


def test_a_second_call_finds_all_or_nothing(monkeypatch, tmp_path):
    pricer = quick_pricer(PriceCache(tmp_path))
    steps_of(monkeypatch, *(itertools.repeat(time_s) for time_s in (1.0, 2.0, 3.0, 4.0)))
    first, second = product(8), product(16)
    assert [price.time_s for price in pricer.price_loops([first, second], budget_s=60)] == [1.0, 2.0]
    assert [price.time_s for price in pricer.price_loops([second, first], budget_s=0)] == [2.0, 1.0]
    assert [price.time_s for price in pricer.price_loops([first], budget_s=60)] == [3.0]


def test_what_was_compared_is_not_compiled_again(monkeypatch):
    pricer = quick_pricer()
    pricer.compare([product(8), product(16)])
    monkeypatch.setattr(
        "jaxquard.pricing.compile.compilers.CompileHere.start", lambda *_, **__: pytest.fail("it compiles")
    )
    assert all(isinstance(one, Price) for one in pricer.price_loops([product(16), product(8)], budget_s=60))
