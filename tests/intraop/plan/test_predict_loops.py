"""Plans run as training loops after the search: which, in which order, and what their times mean for the others."""

import pytest

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.pricing import Failure, FailureReason, Price
from tests.intraop.fake_pricer import FakePricer
from tests.intraop.steps import mesh_of, zoo_types

TRADES = {"rows": 1, "columns": 2, "contracted": 3, "scattered": 9}


class LoopingPricer(FakePricer):
    """Loops take what `loop` says of the time of runs; None for one for which no time is left."""

    def __init__(self, loop, **more):
        super().__init__(times_ms=TRADES, **more)
        self.loop, self.looped, self.budgets_s = loop, [], []

    def price_loops(self, programs, *, budget_s, on_progress=None):
        self.looped += programs
        self.budgets_s.append(budget_s)
        return [self._loop(number, program) for number, program in enumerate(programs)]

    def _loop(self, number, program):
        factor = self.loop(number, program.name)
        if isinstance(factor, Failure):
            return factor
        found = self._price(program.name)
        assert isinstance(found, Price)
        return Price(time_s=factor * found.time_s, peak_bytes=7, spread=0.0, provenance=found.provenance)


def search(num_layers, pricer, **more):
    step, args = zoo_types("gpt-tiny", num_layers=num_layers)
    return search_sharding(step, args, mesh=mesh_of(x=8), pricer=pricer, **more)


@pytest.mark.parametrize("num_layers", [2, 7], ids=["whole", "in pairs"])
def test_the_time_is_that_of_the_loop(num_layers):
    pricer = LoopingPricer(lambda number, name: 1.3)
    found = search(num_layers, pricer, loop_budget_s=50)
    plain = search(num_layers, pricer, loop_budget_s=0)
    assert found.time_s == pytest.approx(1.3 * plain.time_s)
    assert found.size_bytes == 7
    assert pricer.budgets_s == [50]
    assert 2 <= len(pricer.looped) <= 6
    assert len({program.name for program in pricer.looped}) == len(pricer.looped)
    # The baselines that did not run are on the same scale.
    before = {one.name: one.time_s for one in plain.baselines}
    assert {one.name: one.time_s / before[one.name] for one in found.baselines} == pytest.approx(
        dict.fromkeys(before, 1.3)
    )


def test_the_batch_is_fresh_and_the_state_is_not():
    pricer = LoopingPricer(lambda number, name: 1.0)
    search(2, pricer)
    for program in pricer.looped:
        assert program.fresh
        assert set(program.fresh).isdisjoint(program.donated)
        assert len(program.fresh) + len(program.donated) == len(program.in_specs)


def test_a_plan_that_is_slow_as_a_loop_is_not_chosen():
    """The compiler makes something else of the whole: as by pairs of neighbours it is the fastest."""
    pricer = LoopingPricer(lambda number, name: 5.0 if number == 0 else 1.1)
    found = search(7, pricer)
    first, second = pricer.looped[:2]
    assert found.time_s == pytest.approx(min(1.1 * pricer._price(one.name).time_s for one in pricer.looped[1:]))
    assert first.name != second.name


def test_plans_without_time_keep_their_prediction_on_the_scale_of_those_that_ran():
    late = Failure(name="late", reason=FailureReason.NO_TIME, message="the time was over")
    pricer = LoopingPricer(lambda number, name: 2.0 if number == 0 else late)
    found = search(2, pricer)
    plain = search(2, pricer, loop_budget_s=0)
    assert found.time_s == pytest.approx(2 * plain.time_s)
    assert [one.time_s for one in found.baselines] == pytest.approx([2 * one.time_s for one in plain.baselines])
    assert not [note for note in found.notes if "late" in note]


def test_if_none_runs_the_prediction_stands():
    failure = Failure(name="whole", reason=FailureReason.NO_RUN, message="no")
    pricer = LoopingPricer(lambda number, name: failure)
    found = search(2, pricer)
    assert found.time_s == search(2, pricer, loop_budget_s=0).time_s
    assert "failed: whole: does not run (no)" in found.notes


@pytest.mark.parametrize("budget_s", [-1, "long", float("nan"), True])
def test_a_budget_is_a_number_of_seconds(budget_s):
    with pytest.raises(ShardingError, match=r"loop_budget_s=.* but it is a number of seconds, 0 or more"):
        search(2, FakePricer(), loop_budget_s=budget_s)
