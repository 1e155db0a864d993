"""Rounds on a machine with slow phases; made-up times."""

import pytest

from jaxquard.pricing.measure.runs import reference_program as reference_module
from jaxquard.pricing.measure.runs.reference_program import ReferenceProgram
from jaxquard.pricing.measure.runs.run_rounds import RunBudget
from jaxquard.pricing.measure.runs.timed_program import RunSeries, TimedProgram
from jaxquard.pricing.outcomes import BestTimes

BUDGET = RunBudget(num_warmups=1, num_runs=3, slow_factor=2.5, limit_s=1e9)


class Machine:
    """Slows every run by a factor; each round has the next, and the last stays."""

    def __init__(self, *factors):
        self.factors = list(factors)
        self.num_runs = 0

    def program(self, time_s):
        return Program(self, time_s)


class Program(TimedProgram):
    """Has a time, and none of what else a timed has."""

    def __init__(self, machine, time_s):
        self._machine, self._time_s = machine, time_s
        self.series = RunSeries()
        self.fails = False

    def run(self, label=""):
        self._machine.num_runs += 1
        if self.fails:
            raise RuntimeError("broken")
        return self._time_s * self._machine.factors[0]


class Direct:
    def run(self, do, *, limit_s):
        return do()


@pytest.fixture
def phases(monkeypatch):
    """Lets a machine take its next factor after every round."""

    def set_phases(machine):
        run_rounds = reference_module.run_rounds

        def counted(*args, **kwargs):
            run_rounds(*args, **kwargs)
            if len(machine.factors) > 1:
                machine.factors.pop(0)

        monkeypatch.setattr(reference_module, "run_rounds", counted)

    return set_phases


def run_all(reference, *programs, best=None, small=None):
    timed_programs = dict(enumerate(programs))
    failed = []

    def on_error(number, error):
        failed.append(number)
        del timed_programs[number]

    reference.run(
        timed_programs,
        groups=dict.fromkeys(timed_programs),
        best=best or BestTimes(),
        budget=BUDGET,
        watch=Direct(),
        on_error=on_error,
        small=range(len(programs)) if small is None else small,
    )
    return failed


def minimum_s(*programs):
    return [program.minimum_s(BUDGET.num_warmups) for program in programs]


def test_a_round_in_a_slow_phase_is_run_again(phases):
    machine = Machine(1, 2, 1)
    phases(machine)
    reference = ReferenceProgram()
    run_all(reference, machine.program(10), machine.program(11))
    late = machine.program(12)
    run_all(reference, late)
    assert minimum_s(late) == [12]


def test_the_round_of_the_best_pace_counts_if_all_are_slow(phases):
    machine = Machine(1, 2, 1.5, 3, 3, 3)
    phases(machine)
    reference = ReferenceProgram()
    run_all(reference, machine.program(10))
    late = machine.program(12)
    run_all(reference, late)
    assert minimum_s(late) == [18]


def test_an_even_machine_repeats_nothing(phases):
    machine = Machine(1, 1.05)
    phases(machine)
    reference = ReferenceProgram()
    run_all(reference, machine.program(10))
    before = machine.num_runs
    run_all(reference, machine.program(30), machine.program(31))
    assert machine.num_runs - before == 3 * (BUDGET.num_warmups + BUDGET.num_runs)


def test_what_looked_slow_in_a_slow_phase_is_not_stopped_for_it(phases):
    machine = Machine(1, 2, 1)
    phases(machine)
    reference, best = ReferenceProgram(), BestTimes()
    run_all(reference, machine.program(10), best=best)
    fair = machine.program(14)
    run_all(reference, fair, best=best)
    assert minimum_s(fair) == [14]
    assert not fair.was_stopped_early


def test_repeats_take_a_part_of_the_time_at_most(phases, monkeypatch):
    machine = Machine(1, 2)
    phases(machine)
    monkeypatch.setattr(reference_module, "_FREE_S", 0.0)
    monkeypatch.setattr(reference_module, "_REPEATED_SHARE", 0.0)
    reference = ReferenceProgram()
    run_all(reference, machine.program(10))
    late = machine.program(12)
    run_all(reference, late)
    assert minimum_s(late) == [24]


def test_a_reference_that_fails_is_replaced(phases):
    machine = Machine(1)
    phases(machine)
    reference = ReferenceProgram()
    first = machine.program(10)
    run_all(reference, first)
    first.fails = True
    late = machine.program(12)
    assert run_all(reference, late) == []
    assert minimum_s(late) == [12]
    before = machine.num_runs
    run_all(reference, machine.program(13))
    assert machine.num_runs - before == 2 * (BUDGET.num_warmups + BUDGET.num_runs)


def test_only_a_small_program_stays(phases):
    machine = Machine(1, 2, 1)
    phases(machine)
    reference = ReferenceProgram()
    run_all(reference, machine.program(10), small=())
    late = machine.program(12)
    run_all(reference, late)
    assert minimum_s(late) == [24]
