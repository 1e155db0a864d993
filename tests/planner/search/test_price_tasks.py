"""Whole tasks: the time of a step from them, and how plans are chosen by it."""

import contextlib
import dataclasses
import math

import jax
import optax
import pytest

from jaxquard.errors import PlanError, PricingError
from jaxquard.planner.search import find_plan as find_plan_module
from jaxquard.planner.search.find_plan import find_plan
from jaxquard.planner.search.measure_plans import MeasuredPlan
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.price_tasks import price_tasks
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.targets import find_plan_target
from jaxquard.pricing import Failure, FailureReason, Price, Provenance
from tests.planner.small_losses import mlp_args, mlp_loss

FAKE = Provenance(pricer="fake", jax_version="", platform="", device_kind="", num_devices=0, date="", num_runs=0)


@dataclasses.dataclass
class FakePricer:
    """Prices a program by a function of its name; no price is a failure."""

    find_s: object
    seen: list = dataclasses.field(default_factory=list)

    def price_all(self, programs, *, groups=None, on_progress=None, end_s=math.inf):
        self.seen += [program.name for program in programs]
        return [self.price_one(program.name) for program in programs]

    def price_one(self, name):
        time_s = self.find_s(name)
        if time_s is None:
            return Failure(name=name, reason=FailureReason.NO_RUN, message="it does not")
        return Price(time_s=time_s, peak_bytes=0, spread=None, provenance=FAKE)


def small_problem():
    params, batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), mlp_args(num_layers=2))
    return loss_problem(mlp_loss, optax.sgd(0.1), (params, batch))[0]


def plan(*, cluster="h100-4", **options):
    target = find_plan_target(cluster=cluster, devices=None, runtime="in_process")
    return find_plan(small_problem(), target, PlanOptions(num_measured=0, cache=None, **options))


def use(monkeypatch, find_s):
    """Tasks are priced by a function of the axes of a mesh and of a task's name."""

    @contextlib.contextmanager
    def make_pricers(*_, **__):
        yield lambda mesh: FakePricer(lambda name: find_s(dict(mesh.shape), name))

    monkeypatch.setattr(find_plan_module, "make_pricers", make_pricers)


def phase_of(name):
    """Returns the phase of a task by its name, such as "layers.0 to layers.1_F"."""
    return name.rpartition("_")[2]


@pytest.mark.parametrize("num_microbatches", [2, 4, 8])
def test_a_pipeline_takes_what_its_schedule_says(num_microbatches):
    """Of 1F1B with stages that take the same: both phases of every microbatch, and once those of each other stage."""
    fix = {"stages": 2, "schedule": "1f1b", "microbatches": num_microbatches, "recompute": "none"}
    found = plan(cluster="cpu-2", fix=fix)
    seconds = {"F": 1.0, "B": 2.0, "FB": 3.0}
    pricer = FakePricer(lambda name: seconds.get(phase_of(name), 0.0))
    played = price_tasks(small_problem(), found, pricer, links={})
    assert played.time_s == pytest.approx((num_microbatches + 1) * 3.0)
    assert set(seconds) <= set(map(phase_of, pricer.seen))
    assert played.num_priced == len(pricer.seen)


def test_a_task_without_a_price_is_named():
    found = plan(cluster="cpu-2", fix={"stages": 2, "microbatches": 2, "schedule": "1f1b"})
    pricer = FakePricer(lambda name: None if name == "stage1_FB" else 1.0)
    with pytest.raises(PricingError, match=r"stage1_FB: does not run \(it does not\)"):
        price_tasks(small_problem(), found, pricer, links={})


def test_whole_tasks_decide(monkeypatch):
    by_blocks = plan(fix={"actors": 1, "microbatches": 1})
    slow = set(by_blocks.axes.items())
    use(monkeypatch, lambda axes, name: 100.0 if set(axes.items()) == slow else 1.0)
    found = plan(fix={"actors": 1, "microbatches": 1}, num_whole=4)
    assert found.axes != by_blocks.axes
    # Each task of a step on one actor runs once.
    assert found.time_s in {1.0, 2.0, 3.0}
    assert found.provenance.startswith("the step: played with the prices of its whole tasks; its parts in the ")
    assert sum(dataclasses.asdict(found.times).values()) == pytest.approx(found.time_s)
    assert found.log.num_programs >= by_blocks.log.num_programs + 3
    times = {one.name: one for one in found.baselines}
    assert times["data parallel"].note == "whole tasks"
    assert all(one.time_s >= found.time_s for one in found.baselines)


def test_plans_on_one_mesh_share_a_pricer(monkeypatch):
    """A pricer that measures holds compilers until the search ends."""
    meshes = []

    @contextlib.contextmanager
    def make_pricers(*_, **__):
        yield lambda mesh: meshes.append(tuple(mesh.shape.items())) or FakePricer(lambda name: 1.0)

    monkeypatch.setattr(find_plan_module, "make_pricers", make_pricers)
    found = plan(fix={"actors": 1, "microbatches": 1}, num_whole=4)
    assert len(meshes) == len(set(meshes)) < 4 + len(found.baselines)


def test_plans_without_prices_of_tasks_have_scaled_ones(monkeypatch):
    fix = {"actors": 1, "microbatches": 1}
    by_blocks = plan(fix=fix)

    def find_s(axes, name):
        return None if axes == {"data": 4} else 1.0

    use(monkeypatch, find_s)
    found = plan(fix=fix, num_whole=1)
    note = next(note for note in found.notes if note.startswith("not priced by its tasks: "))
    assert "data 4, none, 1 microbatch" in note
    assert "does not run (it does not)" in note
    before = {one.name: one.time_s for one in by_blocks.baselines}
    scaled = [one for one in found.baselines if "as of those with tasks" in one.note]
    assert scaled
    factors = {one.time_s / before[one.name] for one in scaled}
    assert max(factors) == pytest.approx(min(factors))


def test_nothing_with_a_price_leaves_the_prices_of_blocks(monkeypatch):
    fix = {"actors": 1, "microbatches": 1}
    use(monkeypatch, lambda axes, name: None)
    found = plan(fix=fix, num_whole=2)
    assert found.time_s == plan(fix=fix).time_s
    assert sum(note.startswith("not priced by its tasks: ") for note in found.notes) >= 2


def test_a_time_budget_leaves_tasks_out(monkeypatch):
    use(monkeypatch, lambda axes, name: 1.0)
    found = plan(fix={"actors": 1}, num_whole=2, time_budget_s=1e-3)
    assert any("the time budget left out pricing the whole tasks of " in text for text in found.log.left_out)


def test_alternatives_are_those_whose_tasks_were_priced(monkeypatch):
    """A scaled price says nothing of a choice among whole tasks."""
    fix = {"stages": 2}
    slow = plan(fix=fix).axes
    use(monkeypatch, lambda axes, name: 100.0 if axes == slow else 1.0)
    found = plan(fix=fix, num_whole=3)
    assert found.axes != slow
    assert found.alternatives
    parts = {"mesh", "microbatches", "schedule", "recompute", "stages", "actors", "storage"}
    assert all(one.added_s >= 0 for one in found.alternatives if one.part in parts)


def test_usual_plans_that_do_not_fit_are_scaled_alike(monkeypatch):
    given = {"fix": {"actors": 1}, "memory_limit_bytes": 15_000}
    before = {one.name: one for one in plan(**given).baselines}
    use(monkeypatch, lambda axes, name: 1.0)
    found = plan(num_whole=1, **given)
    too_large = [one for one in found.baselines if not one.fits]
    assert too_large
    assert all(one.time_s > 100 * before[one.name].time_s for one in too_large)
    assert all("as of those with tasks" in one.note for one in too_large)


def test_a_plan_that_runs_has_one_source_of_its_time_and_one_of_its_parts(monkeypatch):
    use(monkeypatch, lambda axes, name: 1.0)

    def run(problem, plans, **_):
        return [MeasuredPlan(plan=one, time_s=5.0, spread=0.1) for one in plans]

    monkeypatch.setattr("jaxquard.planner.search.run_candidates.measure_plans", run)
    target = find_plan_target(cluster="h100-4", devices=None, runtime="in_process")
    options = PlanOptions(num_measured=2, num_whole=1, cache=None, fix={"actors": 1, "microbatches": 1})
    found = find_plan(small_problem(), target, options, make_mesh=lambda plan: None)
    assert found.time_s == 5.0
    expected = "the step: measured on 4 devices, spread 10%; its parts in the proportions of: model on 4 x h100-4"
    assert found.provenance == expected


@pytest.mark.parametrize("count", [-1, 0.5, "", "two", True, []])
@pytest.mark.parametrize("name", ["num_whole", "num_measured"])
def test_no_number_of_plans(name, count):
    with pytest.raises(PlanError, match=rf"{name}=.* must be a number of plans, 0 or more"):
        PlanOptions(**{name: count})
