"""A budget of time: the usual plans come first, what is late is left out, and the answer is no worse than these."""

import math
import time

import jax
import optax
import pytest

from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.search.candidates import Candidate, finest_first
from jaxquard.planner.search.deadline import Deadline
from jaxquard.planner.search.find_plan import find_plan
from jaxquard.planner.search.list_shapes import list_shapes
from jaxquard.planner.search.measure_plans import measure_plans
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.search.targets import find_plan_target, mesh_maker
from jaxquard.planner.search.two_passes import TwoPassSearch
from jaxquard.planner.search.usual_plans import UsualPlans
from jaxquard.planner.wishes import parse_wishes
from jaxquard.pricing import Failure, FailureReason
from jaxquard.pricing.roofline.roofline_pricer import RooflinePricer
from tests.machine_pace import machine_pace
from tests.planner.small_losses import mlp_args, mlp_loss

CLUSTER = "h100-4"


class LatePricer(RooflinePricer):
    """Prices in closed form, as many programs of a call as it has time for, and none after the end."""

    most = math.inf

    def price_all(self, programs, *, groups=None, on_progress=None, end_s=math.inf):
        count = 0 if time.monotonic() >= end_s else int(min(self.most, len(programs)))
        late = [Failure(name=one.name, reason=FailureReason.NO_TIME, message="late") for one in programs[count:]]
        return [*map(self.price, programs[:count]), *late]


def make_problem():
    params, batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), mlp_args(rows=64))
    return loss_problem(mlp_loss, optax.sgd(0.1), (params, batch))[0]


def make_pricing(most=math.inf):
    problem = make_problem()
    target = find_plan_target(cluster=CLUSTER, devices=None, runtime="in_process")

    def make_pricer(mesh):
        pricer = LatePricer(target.cluster, mesh)
        pricer.most = most
        return pricer

    wishes = parse_wishes(None, None)
    return StepPricing(problem, target.cluster, wishes=wishes, make_pricer=make_pricer), problem, target


def make_usual(pricing, problem, target):
    search = TwoPassSearch(pricing=pricing, memory_limit_bytes=target.memory_bytes)
    return UsualPlans(
        search=search, pricing=pricing, problem=problem, target=target, max_stages=2, deadline=Deadline.after(1000)
    )


def test_usual_plans_have_the_prices_that_were_asked_for():
    pricing, *rest = make_pricing()
    usual = make_usual(pricing, *rest)
    found = usual.find()
    assert [one.name.split(",")[0] for one in found] == ["data parallel", "fsdp", "megatron"]
    assert pricing.is_fine
    assert usual.deadline.left_out == []
    assert {one.prices.facts.provenance.partition(" ")[0] for one in found} == {"model"}


def test_if_one_is_late_all_have_closed_forms():
    pricing, *rest = make_pricing(most=2)
    usual = make_usual(pricing, *rest)
    found = usual.find()
    assert [one.name.split(",")[0] for one in found] == ["data parallel", "fsdp", "megatron"]
    assert not pricing.is_fine
    assert usual.deadline.left_out == [
        "the time budget left out prices of the usual plans, so all plans are compared in closed form"
    ]


def test_a_mesh_whose_prices_are_late_has_those_of_recipes():
    """The strategies of recipes come first, of every segment; reshards that are late have closed forms."""
    whole, _, _ = make_pricing()
    axes, count = {"data": 2, "model": 2}, 1
    wanted = whole.find(axes, count)
    pricing, _, _ = make_pricing(most=wanted.facts.num_programs // 2)
    deadline = Deadline.after(1000)
    found = pricing.find(axes, count, deadline=deadline)
    (left_out,) = deadline.left_out
    assert left_out.endswith(" programs of the mesh data 2 x model 2 with 1 microbatches")
    costs = found.costs(storage=Storage.AS_USED, recompute=Recompute.NONE)
    for recipe in ("data parallel", "megatron"):
        assert costs.places(found.facts.recipes[recipe]) is not None
    all_costs = wanted.costs(storage=Storage.AS_USED, recompute=Recompute.NONE)
    assert sum(map(len, costs.strategies)) < sum(map(len, all_costs.strategies))


def test_a_search_without_time_for_a_mesh_goes_on_in_closed_form():
    pricing, problem, target = make_pricing(most=0)
    deadline = Deadline(end_s=time.monotonic())
    search = TwoPassSearch(pricing=pricing, memory_limit_bytes=target.memory_bytes, deadline=deadline)
    shapes = list_shapes(problem, target, parse_wishes(None, None), max_stages=2, max_microbatch_size=None)
    assert search.run(shapes).best is not None
    assert not pricing.is_fine
    assert any("all plans but the usual ones" in text for text in deadline.left_out)


def test_a_budget_holds_while_programs_compile():
    target = find_plan_target(cluster="cpu-4", devices=None, runtime="in_process")
    options = PlanOptions(pricer="compile", time_budget_s=2, num_measured=0, cache=None)
    start_s = time.monotonic()
    found = find_plan(make_problem(), target, options)
    # The compilers are not even started after two seconds; they would take minutes for all programs.
    assert time.monotonic() - start_s < 2 + 8 * max(1.0, machine_pace())
    assert "so all plans are compared in closed form" in "; ".join(found.log.left_out)
    usual = [one for one in found.baselines if one.name != "best of a single axis"]
    assert len(usual) == 3
    assert found.time_s <= min(one.time_s for one in usual if one.fits)


def test_a_plan_that_is_late_did_not_run():
    target = find_plan_target(cluster=None, devices=2, runtime="in_process")
    problem, options = make_problem(), PlanOptions(num_measured=0, cache=None, fix={"actors": 1, "microbatches": 1})
    found = find_plan(problem, target, options)
    begun = []
    kwargs = {"make_mesh": mesh_maker(target, {}), "on_progress": lambda *call: begun.append(call)}
    assert measure_plans(problem, [found] * 2, end_s=time.monotonic(), **kwargs) == []
    assert len(begun) == 1
    # The time ends while it compiles.
    assert measure_plans(problem, [found], end_s=time.monotonic() + 0.05, **kwargs) == []


def some_candidates(*times_s, is_fine):
    return [
        Candidate(name="", finalist=None, costs=None, make_plan=None, time_s=one, price_s=one, is_fine=is_fine)
        for one in times_s
    ]


def test_plans_in_closed_form_are_tried_after_those_with_fine_prices():
    coarse, fine = some_candidates(1.0, 2.0, is_fine=False), some_candidates(9.0, 8.0, is_fine=True)
    assert finest_first([*coarse, *fine]) == [fine[1], fine[0], *coarse]
    # Where all are alike, the order stays.
    assert finest_first(fine) == fine
    assert finest_first(coarse[::-1]) == coarse[::-1]


@pytest.mark.parametrize(
    ("options", "has_runs", "budget_s"),
    [
        ({}, False, None),
        ({}, True, 300),
        ({"pricer": "compile"}, False, 300),
        ({"pricer": "measure"}, True, 300),
        ({"pricer": "measure", "time_budget_s": None}, True, None),
        ({"time_budget_s": 9}, False, 9),
    ],
)
def test_the_default_budget(options, has_runs, budget_s):
    assert PlanOptions(**options).find_budget_s(has_runs=has_runs) == budget_s
