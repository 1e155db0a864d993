"""Times of whole steps and the plans chosen by them, with steps that only pretend to run."""

from types import SimpleNamespace

import pytest

from jaxquard.evaluate.cfp.cells.cell import CellSpec, Role
from jaxquard.evaluate.cfp.cells.cell_step import make_step
from jaxquard.evaluate.cfp.run.layer_strategies import layer_strategies
from jaxquard.evaluate.cfp.run.measured_backend import MeasuredRuns
from jaxquard.evaluate.cfp.run.run_plans import run_plans
from jaxquard.evaluate.cfp.run.whole_steps import COARSE, Timing
from jaxquard.intraop.plan.search_plans import search_plans
from jaxquard.intraop.plan.segment_prices import price_segments
from jaxquard.intraop.shardings.programs import StepPrograms
from tests.intraop.fake_pricer import FakePricer
from tests.intraop.steps import analyse

# Runs take half as long again when many are made.
PACE = 1.5


class PretendedSteps:
    """Plans take 10 ms, 11 ms and so on in their order; the last strategy is the same program as the first plan."""

    def __init__(self, names):
        self.names, self.fine = names, []

    def __getitem__(self, name):
        return SimpleNamespace(peak_bytes=100, sent_bytes=8.0)

    def time_s(self, name):
        return 1e-3 * (10 + (0 if name == self.names[-1] else self.names.index(name)))

    def same_as(self, names):
        return [*names, self.names[-1]] if self.names[0] in names and self.names[-1] not in names else names

    def time(self, names, budget, *, round_size, on_step):
        if budget is COARSE:
            return {name: Timing(time_s=self.time_s(name), minimum_s=self.time_s(name)) for name in names}
        self.fine = names
        return {
            name: Timing(time_s=PACE * self.time_s(name), minimum_s=self.time_s(name), spread=0.5, error=0.01)
            for name in names
        }

    def shares(self, names, *, on_step):
        return dict.fromkeys(names, 0.25)


@pytest.fixture(scope="module")
def ran():
    analysis = analyse(*make_step(CellSpec(model="gpt", num_layers=2, model_dim=64, batch_size=8)))
    prices = price_segments(StepPrograms(analysis), pricer=FakePricer())
    found = search_plans(prices, pricer=FakePricer(), memory_limit_bytes=None, num_finalists=2)
    others = layer_strategies(analysis, prices, bases=[found.plans[0].assignment], count=20, limit_bytes=None)
    plans = [*found.plans, *others]
    steps = PretendedSteps([plan.name for plan in plans])
    whole = MeasuredRuns(steps)
    runs = run_plans(analysis, prices, found, plans, whole=whole, limit_bytes=None, on_part=lambda *_: None)
    return runs, steps, found


def test_the_chosen_plan_the_baselines_and_the_best_run_in_turns(ran):
    runs, steps, found = ran
    fine = {run.name for run in runs if run.measured_s is not None}
    assert fine == set(steps.fine)
    assert {run.name for run in runs if run.role is Role.BASELINE} <= fine
    assert found.plans[found.chosen].name in fine
    assert {run.name for run in runs[:10]} <= fine
    assert len(fine) < len(runs)


def test_an_equal_program_has_the_same_time(ran):
    runs, _, _ = ran
    assert runs[-1].role is Role.STRATEGY
    assert runs[-1].measured_s == runs[0].measured_s == pytest.approx(PACE * 10e-3)
    assert runs[-1].error == 0.01


def test_few_runs_count_at_the_pace_of_many(ran):
    runs, steps, _ = ran
    few = [run for run in runs if run.measured_s is None]
    assert few
    for run in few:
        assert run.time_s == pytest.approx(PACE * steps.time_s(run.name))
    by_time = sorted(runs, key=lambda run: run.time_s)
    assert [run.name for run in by_time] == sorted((run.name for run in runs), key=steps.time_s)


def test_time_is_parted_by_the_profilers_share(ran):
    parted = [run for run in ran[0] if run.communication_s is not None]
    assert parted
    for run in parted:
        assert (run.communication_s, run.compute_s) == pytest.approx((0.25 * run.time_s, 0.75 * run.time_s))
