"""Plans on a host that changes its pace: the best are priced again, right after one another."""

import contextlib
import itertools
import math

import jax
import optax
import pytest

from jaxquard.planner.search import find_plan as find_plan_module
from jaxquard.planner.search.find_plan import find_plan
from jaxquard.planner.search.measure_plans import MeasuredPlan
from jaxquard.planner.search.measured_host import MeasuredHost
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.targets import find_plan_target
from jaxquard.planner.search.task_pricers import TaskPricers, cache_of_moment
from jaxquard.pricing import Failure, FailureReason, Price, PriceCache, Provenance
from tests.planner.small_losses import mlp_args, mlp_loss

FAKE = Provenance(pricer="fake", jax_version="", platform="", device_kind="", num_devices=0, date="", num_runs=0)
NOTHING = Price(time_s=0.0, peak_bytes=0, spread=None, provenance=FAKE)
FIX = {"actors": 1, "microbatches": 1}
DATA, MODEL = (("data", 4),), (("model", 4),)


class FakePricer:
    """All tasks of a plan take the same: what is given, or returned by a function. None is a failure."""

    def __init__(self, time_s, note_call):
        self.time_s, self.note_call = time_s, note_call

    def price_all(self, programs, *, groups=None, on_progress=None, end_s=math.inf):
        self.note_call()
        time_s = self.time_s() if callable(self.time_s) else self.time_s
        if time_s is None:
            return [Failure(name=one.name, reason=FailureReason.NO_RUN, message="no") for one in programs]
        return [Price(time_s=time_s, peak_bytes=0, spread=None, provenance=FAKE) for _ in programs]


class FakeHost:
    """Prices tasks by their mesh: as `first` says, then as `again` says."""

    def __init__(self, first, again, *, is_measured=True):
        self.passes = [first, again]
        self.host = MeasuredHost(price_overhead=lambda problem, applied: NOTHING) if is_measured else None
        self.caches = []
        self.asked = []

    @contextlib.contextmanager
    def open(self, target, options, *, cache):
        times_s = self.passes[len(self.caches)]
        self.caches.append(cache)
        asked = []
        self.asked.append(asked)

        def make_pricer(mesh):
            axes = tuple(mesh.shape.items())
            return FakePricer(times_s(axes), lambda: asked.append(axes))

        yield TaskPricers(make_pricer=make_pricer, host=self.host)


def plan(monkeypatch, host, *, runs=None, **options):
    params, batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), mlp_args(num_layers=2))
    problem, _ = loss_problem(mlp_loss, optax.sgd(0.1), (params, batch))
    target = find_plan_target(cluster="h100-4", devices=None, runtime="in_process")
    options = {"num_measured": 0, "num_whole": 4, "cache": None, "fix": FIX} | options
    monkeypatch.setattr(find_plan_module, "open_task_pricers", host.open)
    return find_plan(problem, target, PlanOptions(**options), make_mesh=runs)


def of_axes(plan):
    return tuple(plan.axes.items())


def test_a_fast_minute_does_not_decide(monkeypatch, tmp_path):
    """Plans on the data axis were priced in one; and an old price says nothing of the pace."""
    host = FakeHost({DATA: 1.0, MODEL: 1.2}.get, {DATA: 1.5, MODEL: 1.3}.get)
    cache = PriceCache(tmp_path)
    found = plan(monkeypatch, host, cache=cache)
    assert of_axes(found) == MODEL
    # The best by its first price comes last: most likely it is the plan, and has the newest price.
    assert host.asked[1] == [MODEL, DATA]
    assert host.caches[0] is cache
    assert host.caches[1].folder != cache.folder
    # Each task of a step on one actor runs once.
    num_tasks = round(found.time_s / 1.3)
    assert found.time_s == pytest.approx(num_tasks * 1.3)
    assert num_tasks in {1, 2, 3}
    assert found.provenance.startswith("the step: played with the prices of its whole tasks; its parts in the ")


def test_one_that_is_clearly_the_best_is_priced_again_alone(monkeypatch):
    host = FakeHost(lambda axes: 1.0 if axes == DATA else 1.3, lambda axes: 1.15)
    found = plan(monkeypatch, host)
    assert host.asked[1] == [DATA]
    assert of_axes(found) == DATA
    assert "the pace of this host changed: the best plans took 1.15 of their prices of before" in found.notes
    # The others are of the same minute.
    slower = {round(one.time_s / found.time_s, 6) for one in found.baselines if one.note == "whole tasks"}
    assert slower <= {1.0, 1.3}
    assert len(slower) == 2


def test_at_most_three_are_priced_again(monkeypatch):
    """Of programs that differ: equal ones have equal prices."""
    calls = itertools.count()
    host = FakeHost(lambda axes: lambda: 1.0 + 0.01 * next(calls), lambda axes: 1.0)
    plan(monkeypatch, host)
    assert len(host.asked[0]) > 3
    assert len(host.asked[1]) == 3
    host = FakeHost(lambda axes: 1.0, lambda axes: 1.0)
    plan(monkeypatch, host)
    assert len(host.asked[0]) > 3
    assert len(host.asked[1]) == 1


@pytest.mark.parametrize("pace", [0.6, 1.05])
def test_a_pace_that_is_the_same_for_all_changes_no_choice(monkeypatch, pace):
    def find_s(axes):
        return 1.0 + 0.03 * dict(axes).get("model", 1)

    before = plan(monkeypatch, FakeHost(find_s, None, is_measured=False), num_whole=1)
    found = plan(monkeypatch, FakeHost(find_s, lambda axes: pace * find_s(axes)), num_whole=1)
    assert of_axes(found) == of_axes(before)
    assert found.time_s == pytest.approx(pace * before.time_s)
    old = {one.name: one.time_s for one in before.baselines}
    assert {one.name: one.time_s for one in found.baselines} == pytest.approx(
        {name: pace * time_s for name, time_s in old.items()}
    )
    assert any("the pace of this host" in note for note in found.notes) == (abs(pace - 1) > 0.1)


def test_prices_of_a_second_look_are_of_one_moment(tmp_path):
    """They are found again behind the very same prices, and not behind others."""
    cache = PriceCache(tmp_path)
    first = cache_of_moment(cache, [1.0, 1.25])
    first.store("key", NOTHING, name="")
    assert cache_of_moment(cache, [1.25, 1.0]).find("key") == NOTHING
    assert cache_of_moment(cache, [1.0, 1.25000001]).find("key") is None
    assert cache_of_moment(cache, [1.0]).find("key") is None
    assert cache.find("key") is None
    assert cache_of_moment(None, [1.0]) is None


def test_what_does_not_run_again_keeps_its_price(monkeypatch):
    host = FakeHost(lambda axes: 1.0 if axes == DATA else 2.0, lambda axes: None)
    found = plan(monkeypatch, host)
    assert of_axes(found) == DATA
    assert found.time_s in {1.0, 2.0, 3.0}
    assert any(note.startswith("not priced again: 1 stage, data 4, ") for note in found.notes)


def test_without_a_measured_host_prices_stay(monkeypatch):
    """Those of a compiler are the same a minute later."""
    host = FakeHost(lambda axes: 1.0, None, is_measured=False)
    plan(monkeypatch, host)
    assert len(host.caches) == 1


def test_where_plans_run_prices_do_not_decide(monkeypatch):
    def run(problem, plans, **_):
        return [MeasuredPlan(plan=one, time_s=5.0, spread=0.1) for one in plans]

    monkeypatch.setattr("jaxquard.planner.search.run_candidates.measure_plans", run)
    host = FakeHost(lambda axes: 1.0, None)
    assert plan(monkeypatch, host, runs=lambda plan: None, num_measured=2).time_s == 5.0
    assert len(host.caches) == 1


def test_plans_that_no_wish_allows_are_not_priced_again(monkeypatch):
    """The usual ones are priced whatever the user wishes."""
    host = FakeHost(lambda axes: 1.0, lambda axes: 1.0)
    plan(monkeypatch, host, fix=FIX | {"mesh": {"model": 4}})
    assert set(host.asked[0]) == {DATA, MODEL}
    assert set(host.asked[1]) == {MODEL}
