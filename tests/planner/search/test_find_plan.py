"""Plans with each pricer, from a cache, and within a time budget."""

import re
import time

import jax
import numpy as np
import optax
import pytest

from jaxquard.errors import InfeasiblePlanError, PlanError, PricingError
from jaxquard.planner.search.deadline import Deadline
from jaxquard.planner.search.find_plan import find_plan
from jaxquard.planner.search.measure_plans import MeasuredPlan
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.targets import find_plan_target
from jaxquard.pricing import PriceCache
from jaxquard.pricing.measure.measurement import Measurement
from jaxquard.pricing.mock_gpu.mock_process import _no_device
from jaxquard.pricing.target.compile_pricer import CompilePricer
from tests.machine_pace import machine_pace
from tests.planner.small_losses import mlp_args, mlp_loss

# One mesh, one number of microbatches and one strategy for each block: a few programs are priced.
ONE_SHAPE = {"actors": 1, "data": 2, "microbatches": 1, "layers.*": "rows", "out": "rows"}

WHOLE = "the step: played with the prices of its whole tasks; its parts in the proportions of: "


def plan(*, cluster=None, devices=None, make_mesh=None, num_measured=0, optimizer=None, **options):
    params, batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), mlp_args(num_layers=2))
    problem, _ = loss_problem(mlp_loss, optimizer or optax.sgd(0.1), (params, batch))
    target = find_plan_target(cluster=cluster, devices=devices, runtime="in_process")
    return find_plan(problem, target, PlanOptions(num_measured=num_measured, **options), make_mesh=make_mesh)


@pytest.mark.parametrize(
    ("pricer", "where", "origin"),
    [
        ("model", {"cluster": "cpu-2"}, "model on 2 x cpu-2"),
        pytest.param("compile", {"cluster": "cpu-2"}, "compiled on 2 x cpu", marks=pytest.mark.slow),
        ("measure", {"devices": 2}, f"{WHOLE}measured on 2 x cpu"),
    ],
)
def test_every_pricer_prices_a_plan_and_finds_it_again_in_its_cache(pricer, where, origin, tmp_path, monkeypatch):
    cache = PriceCache(tmp_path)
    first = plan(pricer=pricer, cache=cache, fix=ONE_SHAPE, **where)
    assert first.provenance.startswith(origin)
    assert first.time_s > 0
    assert first.log.num_programs > 0
    assert first.log.left_out == ()
    if pricer == "model":
        return
    # All prices come from the disk: nothing is compiled, and nothing runs.
    assert any(tmp_path.glob("price-*.json"))
    monkeypatch.setattr(CompilePricer, "_begin", None)
    monkeypatch.setattr(Measurement, "_run", None)
    again = plan(pricer=pricer, cache=cache, fix=ONE_SHAPE, **where)
    assert again.time_s == first.time_s
    assert again.stages == first.stages


def test_pricers_that_cannot_price_here_are_refused():
    with pytest.raises(PlanError, match=r"pricer='guess' is not known. Use one of: model, compile, mock-gpu, measure"):
        plan(pricer="guess", cluster="cpu-2")
    with pytest.raises(
        PlanError, match=r"nothing can be measured: h100-8 is not here. Use the pricer model or compile"
    ):
        plan(pricer="measure", cluster="h100-8")


def test_without_a_gpu_the_mock_is_refused_with_what_to_do(monkeypatch, tmp_path):
    class NoGpu:
        def __init__(self, **settings):
            assert settings["platform"] == "cuda"

        @property
        def device_kind(self):
            raise PricingError(_no_device("cuda", "no devices"))

        def stop(self):
            pass

    monkeypatch.setattr("jaxquard.pricing.mock_gpu.mock_gpu_pricer.MockProcess", NoGpu)
    monkeypatch.setattr("jaxquard.pricing.mock_gpu.mock_gpu_pricer.gpu_model", lambda: None)
    with pytest.raises(PricingError, match=r"JAX finds none that it can use: no devices. Run this on a machine with"):
        plan(pricer="mock-gpu", cluster="h100-8", cache=PriceCache(tmp_path), fix={**ONE_SHAPE, "data": 8})


@pytest.mark.parametrize(("optimizer", "term"), [(optax.sgd(0.1), "weights"), (optax.adam(0.1), "optimizer")])
def test_state_that_fits_nowhere_is_refused_with_the_minimum_and_its_term(optimizer, term):
    params, _ = mlp_args(num_layers=2)
    size_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    # Adam's two moments, and a counter.
    state_bytes = size_bytes if term == "weights" else 3 * size_bytes + 4
    wanted = (
        f"The smallest needs {-(-state_bytes // 4) / 1e9:.3g} GB or more, most of it {term}: that is the minimum that"
    )
    with pytest.raises(InfeasiblePlanError, match=f"^no plan fits 1e-06 GB a device\\. {wanted} state alone takes of"):
        plan(cluster="h100-4", memory_limit_bytes=1000, optimizer=optimizer)


def test_of_a_long_step_the_best_of_a_single_axis_is_the_first_that_fits(monkeypatch):
    def note(**given):
        found = plan(cluster="h100-2", **given)
        return next(one.note for one in found.baselines if one.name == "best of a single axis")

    given = {"fix": {"actors": 2, "schedule": "1f1b", "recompute": "full"}}
    assert note(**given) == ""
    monkeypatch.setattr("jaxquard.planner.stages.assign._LONG", 1)
    assert note(**given) == "of a long step, the usual ones and the first that fits"


@pytest.mark.parametrize(
    ("given", "has_unpriced"),
    [
        ({}, False),
        ({"fix": {"recompute": "none"}, "memory_limit_bytes": 30_000}, False),
        # One device shards no columns: its meshes have no price.
        ({"fix": {"layers.0.up": "columns", "recompute": "none"}}, True),
        ({"time_budget_s": 1e-3}, True),
    ],
)
def test_what_was_seen_is_pruned_priced_or_without_a_price(given, has_unpriced):
    log = plan(cluster="h100-2", **given).log
    assert log.num_pruned + log.num_priced + log.num_unpriced == log.num_seen
    assert 0 < log.num_priced < log.num_seen
    assert log.num_pruned >= 0
    assert (log.num_unpriced > 0) is has_unpriced


def test_a_time_budget_holds_and_says_what_it_left_out():
    start_s = time.process_time()
    found = plan(cluster="h100-4", time_budget_s=1e-3)
    spent_s = time.process_time() - start_s
    assert found.time_s > 0
    left_out = "; ".join(found.log.left_out)
    for text in ("left out 5 of 6 meshes", "alternatives to"):
        assert text in left_out
    # One mesh and the usual plans, not all of them.
    assert spent_s < 5 * machine_pace()
    usual = [one for one in found.baselines if one.name != "best of a single axis"]
    assert [one.name.split(",")[0] for one in usual] == ["data parallel", "fsdp", "megatron"]
    assert found.time_s <= min(one.time_s for one in usual if one.fits)


def test_the_best_usual_plan_runs_first_and_the_others_have_scaled_prices(monkeypatch):
    """So a search that ends early is no worse than what people write by hand."""

    def run_one(problem, plans, **_):
        return [MeasuredPlan(plan=plans[0], time_s=10 * plans[0].time_s, spread=0.1)]

    monkeypatch.setattr("jaxquard.planner.search.run_candidates.measure_plans", run_one)
    given = {"cluster": "h100-4", "fix": {"actors": 1}}
    priced = plan(**given)
    found = plan(**given, make_mesh=lambda plan: None, num_measured=3)
    usual = {one.name: one for one in found.baselines if one.name != "best of a single axis"}
    expected = {one.name: 10 * one.time_s for one in priced.baselines if one.name in usual}
    assert len(usual) == 3
    assert {name: one.time_s for name, one in usual.items()} == pytest.approx(expected)
    assert found.time_s == pytest.approx(min(expected.values()))
    assert found.log.num_measured == 1
    notes = sorted(one.note for one in usual.values())
    assert notes == ["measured", *["not run; its price x 10, as of those that ran"] * 2]


def test_a_usual_plan_that_runs_fastest_has_alternatives(monkeypatch):
    def run_all(problem, plans, **_):
        """Megatron's choice of columns runs fastest."""
        factors = [0.01 if "columns" in plan.stages[0].strategies[0] else 1.0 for plan in plans]
        return [
            MeasuredPlan(plan=one, time_s=factor * one.time_s, spread=0.1)
            for one, factor in zip(plans, factors, strict=True)
        ]

    monkeypatch.setattr("jaxquard.planner.search.run_candidates.measure_plans", run_all)
    found = plan(cluster="h100-4", fix={"actors": 1}, make_mesh=lambda plan: None, num_measured=3)
    assert found.stages[0].strategies[0] == ("columns",)
    parts = {one.part: one for one in found.alternatives}
    assert parts["mesh"].chosen == "model 4"
    assert str(found.explain("mesh")).splitlines()[1].startswith("  next best: data ")
    # Its own price, a hundredth of which it took.
    assert (parts["block 0"].chosen, parts["block 0"].alternative) == ("columns", "rows")
    assert 0 < abs(parts["block 0"].added_s) < found.time_s


def test_a_plan_names_those_of_which_values_are_gathered_whole(monkeypatch):
    def run(problem, plans, **_):
        counts = [3, *[0] * len(plans)]
        return [MeasuredPlan(plan=one, time_s=one.time_s, num_rematerialized=counts.pop(0)) for one in plans]

    monkeypatch.setattr("jaxquard.planner.search.run_candidates.measure_plans", run)
    found = plan(cluster="h100-4", fix={"actors": 1}, make_mesh=lambda plan: None, num_measured=3)
    (note,) = (note for note in found.notes if "involuntary full rematerialization" in note)
    assert re.match(r"of 1 of \d plans that ran the compiler gathers values whole, ", note)
    assert re.search(r": (data parallel|fsdp|megatron).*, 1 stage, .* \(3\)\. Their times count that$", note)


def test_a_deadline_divides_its_time():
    never = Deadline.after(None)
    assert never.part(0.1) is never
    assert never.budget_s is None
    assert never.has_time()
    end = Deadline.after(100.0)
    part = end.part(0.5)
    assert 45 < part.rest_s < 51 < end.rest_s <= 100
    assert part.has_time()
    part.left_out.append("a mesh")
    assert end.left_out == ["a mesh"]
    assert not Deadline.after(0.0).has_time()
    assert np.isinf(never.rest_s)
