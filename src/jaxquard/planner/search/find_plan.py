"""Finds the plan of a step for a cluster.

1. Every mesh of an actor is priced with one number of microbatches; with others its costs are scaled.
2. Every configuration gets its stages by the exact assignment, the most promising ones first; bounds prune.
3. The best meshes and numbers of microbatches are priced as they are, and their configurations played again.
4. Where the devices are at hand, the best of each kind run on them, and the fastest is the plan.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxquard.errors import PlanError
from jaxquard.planner.record.plan import Plan, PlanBaseline, PlanSearchLog, TimeTerms
from jaxquard.planner.search.alternatives import find_alternatives
from jaxquard.planner.search.describe_plan import describe_plan
from jaxquard.planner.search.list_shapes import count_devices, list_shapes
from jaxquard.planner.search.measure_plans import MeasuredPlan, measure_plans
from jaxquard.planner.search.pricers import make_pricers
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.search_shapes import FoundShape, ShapeSearch
from jaxquard.planner.search.step_pricing import BATCH_AXIS, StepPricing
from jaxquard.planner.search.targets import PlanTarget
from jaxquard.planner.search.usual_plans import SINGLE_AXIS, has_single_axis, usual_plans
from jaxquard.planner.wishes import parse_wishes
from jaxquard.runtime.remote_mesh import RemoteMesh

OnPlanProgress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of a search.

    Attributes:
        fix: settings, mesh axes, and strategies by parameter path or source line, that the plan shall have.
        forbid: those that it shall not have.
        pricer: "model", in closed form; "compile" or "mock-gpu" ask the target's compiler for what the closed form
            leaves; "measure" the devices at hand.
        memory_limit_bytes: of a device; by default what the cluster's chips have.
        max_microbatch_size: rows of a microbatch at most.
        cut_anywhere: stages may begin elsewhere than at the marks of the code.
        time_budget_s: of the search; what it leaves out is in the plan's log. By default there is none.
        num_measured: plans that run on the devices at hand, if they are; 0 for none.
        cache: of prices; as in `search_sharding`.
        on_progress: called with (done, total, what is done).
    """

    fix: Mapping[str, Any] | None = None
    forbid: Mapping[str, Any] | None = None
    pricer: str = "model"
    memory_limit_bytes: int | None = None
    max_microbatch_size: int | None = None
    cut_anywhere: bool = False
    time_budget_s: float | None = None
    num_measured: int = 6
    cache: Any = "default"
    on_progress: OnPlanProgress | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        limits = {
            "memory_limit_bytes": self.memory_limit_bytes,
            "max_microbatch_size": self.max_microbatch_size,
            "time_budget_s": self.time_budget_s,
        }
        for name, value in limits.items():
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise PlanError(f"{name}={value!r} must be a number above 0, or None for no limit.")
        if not isinstance(self.num_measured, int) or self.num_measured < 0:
            raise PlanError(f"num_measured={self.num_measured!r} must be a number of plans, 0 or more.")


def find_plan(
    problem: PlanProblem,
    target: PlanTarget,
    options: PlanOptions,
    *,
    make_mesh: Callable[[Plan], RemoteMesh] | None = None,
) -> Plan:
    """Finds the fastest plan that fits.

    Args:
        make_mesh: starts the actors of a plan, to run the best ones; None to run nothing.

    Raises:
        PlanError: if a wish cannot be met.
        InfeasiblePlanError: if nothing fits the memory.
    """
    start_s = time.monotonic()
    wishes = parse_wishes(options.fix, options.forbid)
    wishes.check(num_devices=target.num_devices, global_batch=problem.rows, axes=(BATCH_AXIS, "model"))
    limit_bytes = int(options.memory_limit_bytes or target.memory_bytes)
    with make_pricers(options.pricer, target, cache=options.cache) as make_pricer:
        pricing = StepPricing(
            problem, target.cluster, wishes=wishes, make_pricer=make_pricer, cut_anywhere=options.cut_anywhere
        )
        max_stages = pricing.count_stages()
        wishes.check(num_segments=max_stages)
        shapes = list_shapes(
            problem, target, wishes, max_stages=max_stages, max_microbatch_size=options.max_microbatch_size
        )
        search = ShapeSearch(
            shapes,
            pricing,
            memory_limit_bytes=limit_bytes,
            time_budget_s=options.time_budget_s,
            on_progress=options.on_progress,
        )
        found = search.run()
        usual = usual_plans(search, found, problem=problem, target=target, max_stages=max_stages)
        chosen, measured = found[0], []
        if make_mesh is not None and options.num_measured:
            finalists = [*search.choose_finalists(found, options.num_measured), *_to_run(usual, found)]
            measured = _run(pricing, finalists, limit_bytes, options, make_mesh)
            chosen = min(measured, key=lambda one: one[1].time_s)[0]
        plan = describe_plan(pricing, chosen, memory_limit_bytes=limit_bytes)
        ran = {id(one): result for one, result in measured}
        log = PlanSearchLog(
            num_seen=search.num_seen,
            num_pruned=search.num_pruned,
            num_priced=search.num_priced,
            num_simulated=search.num_played,
            num_measured=len(measured),
            num_programs=pricing.num_programs,
            time_s=time.monotonic() - start_s,
            left_out=tuple(search.left_out),
        )
        return replace(
            plan if id(chosen) not in ran else _as_measured(plan, ran[id(chosen)]),
            baselines=tuple(_baselines(usual, pricing, measured)),
            alternatives=find_alternatives(found, chosen),
            log=log,
            notes=tuple(_notes(pricing, [result for _, result in measured])),
        )


def _to_run(usual: Sequence[FoundShape], found: Sequence[FoundShape]) -> list[FoundShape]:
    """Returns the usual plans that are no plans of the search."""
    known = {one.shape for one in found[:1]}
    return [one for one in usual if one.name != SINGLE_AXIS and one.shape not in known]


def _run(
    pricing: StepPricing,
    finalists: Sequence[FoundShape],
    limit_bytes: int,
    options: PlanOptions,
    make_mesh: Callable[[Plan], RemoteMesh],
) -> list[tuple[FoundShape, MeasuredPlan]]:
    """Runs plans on the devices at hand.

    Raises:
        PlanError: if none runs.
    """
    plans = [describe_plan(pricing, one, memory_limit_bytes=limit_bytes) for one in finalists]
    budget_s = float("inf") if options.time_budget_s is None else options.time_budget_s / 2
    measured = measure_plans(
        pricing.problem, plans, make_mesh=make_mesh, budget_s=budget_s, on_progress=options.on_progress
    )
    if all(one.failure for one in measured):
        raise PlanError(f"none of {len(measured)} plans runs on the devices here; the first: {measured[0].failure}")
    return list(zip(finalists, measured, strict=False))


def _as_measured(plan: Plan, measured: MeasuredPlan) -> Plan:
    """Returns a plan with the time that it took; its parts keep their proportions."""
    factor = measured.time_s / plan.time_s
    times = TimeTerms(**{name: factor * getattr(plan.times, name) for name in plan.times.__dataclass_fields__})
    where = f"the step: measured on {plan.num_devices} devices, spread {measured.spread:.0%}; its parts in the "
    return replace(
        plan,
        time_s=measured.time_s,
        times=times,
        mfu=None if plan.mfu is None else plan.mfu / factor,
        provenance=f"{where}proportions of: {plan.provenance}",
    )


def _baselines(
    usual: Sequence[FoundShape], pricing: StepPricing, measured: Sequence[tuple[FoundShape, MeasuredPlan]]
) -> Iterator[PlanBaseline]:
    """Yields the usual plans; where plans were run, with the times that they took, and none that did not run."""
    ran = {id(found): result for found, result in measured}
    for found in usual:
        result = ran.get(id(found))
        if measured and found.name == SINGLE_AXIS:
            alone = [pair for pair in measured if has_single_axis(pair[0].shape)]
            if alone:
                fastest, result = min(alone, key=lambda pair: pair[1].time_s)
                yield _baseline(replace(fastest, name=SINGLE_AXIS), pricing, result)
        elif result is not None or not measured:
            yield _baseline(found, pricing, result)


def _baseline(found: FoundShape, pricing: StepPricing, measured: MeasuredPlan | None) -> PlanBaseline:
    time_s = found.time_s if measured is None else measured.time_s
    peak = pricing.cluster.compute.peak_flops_per_s * found.shape.num_actors * count_devices(found.shape)
    return PlanBaseline(
        name=found.name,
        time_s=time_s,
        memory_bytes=found.played.memory.total_bytes,
        mfu=pricing.flops / (time_s * peak) if peak and time_s < float("inf") else None,
        note="" if measured is None else measured.failure or "measured",
    )


def _notes(pricing: StepPricing, measured: list[MeasuredPlan]) -> list[str]:
    notes = [f"not considered: a mesh of {dict(axes)}: {reason}" for (axes, _), reason in pricing.failures.items()]
    return list(dict.fromkeys(notes)) + [f"did not run: {one.failure}" for one in measured if one.failure]
