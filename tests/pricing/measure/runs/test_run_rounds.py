"""The number of runs, under made-up times."""

import itertools
import math

import pytest

from jaxquard.pricing.measure.runs.run_rounds import RunBudget, run_rounds
from jaxquard.pricing.measure.runs.timed_program import RunSeries
from jaxquard.pricing.outcomes import BestTimes


class Runner:
    """Takes given times, then the last one for ever."""

    def __init__(self, *times_s):
        self._given = itertools.chain(times_s, itertools.repeat(times_s[-1]))
        self.series = RunSeries()

    def run(self):
        return next(self._given)

    @property
    def times_s(self):
        return self.series.times_s

    @property
    def warm_s(self):
        return min(self.times_s[1:] or self.times_s)


class Direct:
    def run(self, do, *, limit_s):
        return do()


def run_all(*runners, on_error=None, **more):
    usual = {"num_warmups": 2, "num_runs": 4, "max_runs": 10, "slow_factor": math.inf, "limit_s": math.inf}
    budget = RunBudget(**{**usual, **more})
    run_rounds(
        dict(enumerate(runners)),
        groups=dict.fromkeys(range(len(runners))),
        best=BestTimes(),
        budget=budget,
        watch=Direct(),
        on_error=on_error or (lambda number, error: pytest.fail(str(error))),
    )
    return [len(runner.times_s) for runner in runners]


def noisy(*, after, time_s=0.01):
    """Every run takes twice the one before it, until it is quiet."""
    return Runner(*(time_s * 2 ** (after - number) for number in range(after)), time_s)


def test_a_quiet_machine_needs_no_more_runs_than_the_minimum():
    assert run_all(Runner(0.01), Runner(0.02)) == [6, 6]


def test_runs_go_on_until_three_are_alike():
    assert run_all(noisy(after=5), extra_s=math.inf) == [8]
    assert run_all(Runner(9, 9, 0.9, 1.2, 0.94, 0.96, 0.91, 5), extra_s=math.inf) == [7]


def test_warm_ups_confirm_nothing():
    assert run_all(Runner(0.01, 0.01, 0.01, 0.02, 0.03, 0.04, 0.01, 0.01), extra_s=math.inf) == [8]


def test_all_of_a_round_get_as_many_runs():
    assert run_all(noisy(after=5), Runner(0.01), extra_s=math.inf) == [8, 8]


def test_there_is_an_end():
    assert run_all(noisy(after=50), extra_s=math.inf) == [12]
    assert run_all(noisy(after=50), max_runs=4, extra_s=math.inf) == [6]
    assert run_all(noisy(after=50), max_runs=0, extra_s=math.inf) == [6]


def test_further_runs_may_not_take_long():
    def restless():
        return Runner(*(1 + 0.1 * (number % 7) for number in range(40)))

    # The six that are planned take 7.5 s, and the next six 7.6 s.
    assert run_all(restless(), max_runs=40, extra_s=2.0) == [12]
    assert run_all(restless(), max_runs=40, extra_s=8.5) == [13]


def test_what_was_stopped_or_failed_is_not_waited_for():
    class Failing(Runner):
        def run(self):
            raise RuntimeError("gone")

    failed = []
    slow, fine = noisy(after=50, time_s=1.0), Runner(0.01)
    counts = run_all(slow, fine, Failing(1), slow_factor=5.0, on_error=lambda number, _: failed.append(number))
    assert counts == [4, 6, 0]
    assert slow.series.was_stopped_early
    assert not fine.series.was_stopped_early
    assert failed == [2]


def test_a_disturbance_is_not_taken_for_a_slow_program():
    disturbed = Runner(*[0.03] * 5, 0.01)
    assert run_all(disturbed, Runner(0.01), slow_factor=2.5, num_runs=8, max_runs=0) == [4, 10]
    disturbed = Runner(*[0.03] * 5, 0.01)
    assert run_all(disturbed, Runner(0.01), slow_factor=2.5, num_runs=8, max_runs=0, fair_s=0.16) == [10, 10]


def test_nobody_is_left():
    assert run_all(Runner(1.0), limit_s=0.5) == [1]


class TestCloseCandidates:
    def test_those_that_are_close_run_on_and_the_others_do_not(self):
        counts = run_all(Runner(1.0), Runner(1.02), Runner(1.2), max_runs=34, extra_s=math.inf, close=0.05)
        assert counts == [36, 36, 6]

    def test_one_that_is_clearly_best_needs_no_more(self):
        assert run_all(Runner(1.0), Runner(1.2), max_runs=34, extra_s=math.inf, close=0.05) == [6, 6]

    def test_a_lucky_run_does_not_let_a_slow_one_run_on(self):
        lucky = Runner(9, 9, 1.2, 1.2, 0.5, 1.2)
        assert run_all(Runner(1.0), Runner(1.02), lucky, max_runs=34, extra_s=math.inf, close=0.05) == [36, 36, 6]

    def test_those_that_fall_behind_later_are_dropped(self):
        late = Runner(*[1.0] * 6, *[1.3] * 40)
        assert run_all(Runner(1.0), Runner(1.01), late, max_runs=34, extra_s=math.inf, close=0.05) == [36, 36, 16]

    def test_there_is_a_time_limit(self):
        # Those that are planned take 6 s each, and so much again is allowed.
        assert run_all(Runner(1.0), Runner(1.0), max_runs=100, extra_s=2.0, close=0.05) == [13, 13]
