"""Finds the plan of a step for a cluster.

1. Every mesh of an actor is priced in closed form with two numbers of microbatches; with others its costs lie between.
2. Every configuration gets its stages by the exact assignment, the most promising ones first; bounds prune.
3. The best meshes and numbers of microbatches are priced as they are, by the pricer that was asked for, and their
   configurations played again.
4. Where the devices are at hand, the best of each kind run on them, and the fastest is the plan.
"""

import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from jaxquard.errors import InfeasiblePlanError, PlanError
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.record.plan import Plan, PlanAlternative, PlanBaseline, PlanSearchLog
from jaxquard.planner.search.block_alternatives import find_block_alternatives
from jaxquard.planner.search.deadline import Deadline
from jaxquard.planner.search.describe_plan import describe_plan
from jaxquard.planner.search.list_shapes import has_single_axis, list_shapes
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.pricers import find_cache, make_pricers
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.run_candidates import Candidate, compare_candidates, rematerialized_notes, run_candidates
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.search.targets import PlanTarget
from jaxquard.planner.search.two_passes import SINGLE_AXIS, TwoPassSearch
from jaxquard.planner.search.usual_plans import RECIPES, USUAL_PLANS, UsualPlans
from jaxquard.planner.stages.assign import is_long_chain
from jaxquard.planner.stages.configurations.configuration import PARTS, PlanConfiguration
from jaxquard.planner.stages.configurations.configuration_search import PlanFinalist
from jaxquard.planner.stages.configurations.search import PlanSearchResult
from jaxquard.planner.stages.configurations.space import DATA_AXIS, MODEL_AXIS, PRODUCT_AXES
from jaxquard.planner.step.stage_boundaries import check_stage_count
from jaxquard.planner.wishes import Wishes, parse_wishes
from jaxquard.runtime.remote_mesh import RemoteMesh
from jaxquard.simulate.actor_link import ActorLinks

_log = logging.getLogger(__name__)
# Of a time budget, the share of the search where plans run as well, and where they do not: the rest goes to the usual
# plans, and to the description of the plan.
_SEARCH, _ALONE, _USUAL = 0.5, 0.85, 0.25


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
    start_s, deadline = time.monotonic(), Deadline.after(options.time_budget_s)
    wishes = parse_wishes(options.fix, options.forbid)
    wishes.check(num_devices=target.num_devices, global_batch=problem.rows, axes=(DATA_AXIS, MODEL_AXIS, *PRODUCT_AXES))
    runner = make_mesh if options.num_measured > 0 else None
    found = _search(problem, target, options, wishes, deadline, runs_plans=runner is not None)
    # Plans that run are traced all the same; of others, the one that is chosen.
    used = found.candidates[: options.num_measured] if runner else [_choose(found, wishes, options)]
    if not all(map(found.is_current, used)):
        _log.info("the cache has prices of another step; this one is priced anew")
        found = _search(problem, target, options, wishes, deadline, runs_plans=runner is not None, is_new=True)
    if runner is not None:
        candidates, usual = run_candidates(
            problem,
            found.candidates[: options.num_measured],
            found.usual,
            make_mesh=runner,
            deadline=deadline,
            on_progress=options.on_progress,
        )
        found = replace(found, candidates=candidates, usual=usual)
    chosen = _choose(found, wishes, options)
    plan = _describe_choice(found, chosen, wishes)
    of_blocks, num_played = _block_alternatives(found, chosen, deadline)
    log = replace(
        found.log,
        num_simulated=found.log.num_simulated + num_played,
        time_s=time.monotonic() - start_s,
        left_out=tuple(dict.fromkeys(deadline.left_out)),
    )
    fingerprint = found.pricing.find_fingerprint(plan.num_microbatches, plan.recompute)
    return replace(plan, fingerprint=fingerprint, alternatives=(*plan.alternatives, *of_blocks), log=log)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The plans that a search leaves to choose from.

    Attributes:
        candidates: the best by prices; after the runs, those that ran.
        usual: the usual plans that fit the memory.
        too_large: those that do not.
        num_programs: priced by a compiler or a measurement.
        notes: what was not considered.
        links: between the actors of a configuration.
        memory_limit_bytes: of a device.
    """

    result: PlanSearchResult
    pricing: StepPricing
    candidates: Sequence[Candidate]
    usual: Sequence[Candidate]
    too_large: Sequence[Candidate]
    num_programs: int
    notes: Sequence[str]
    links: Callable[[PlanConfiguration], ActorLinks]
    memory_limit_bytes: int

    @property
    def log(self) -> PlanSearchLog:
        """The counts of the search and of the runs."""
        num_measured = sum(one.is_measured for one in (*self.candidates, *self.usual))
        return replace(self.result.log, num_measured=num_measured, num_programs=self.num_programs)

    def is_current(self, candidate: Candidate) -> bool:
        """Says whether a plan was found by prices of the step as it is now."""
        shape = candidate.finalist.configuration
        return self.pricing.are_current(shape.num_microbatches, shape.recompute)


def _search(
    problem: PlanProblem,
    target: PlanTarget,
    options: PlanOptions,
    wishes: Wishes,
    deadline: Deadline,
    *,
    runs_plans: bool,
    is_new: bool = False,
) -> _Found:
    """Finds the best plans by prices, and the usual ones.

    Args:
        runs_plans: leaves a share of the time to runs.
        is_new: what the cache has of the step is made anew.
    """
    limit_bytes = int(options.memory_limit_bytes or target.memory_bytes)
    _check_state_fits(problem, num_devices=target.num_devices, limit_bytes=limit_bytes)
    with make_pricers(options.pricer, target, cache=options.cache) as make_pricer, contextlib.ExitStack() as stack:
        pricing = StepPricing(
            problem,
            target.cluster,
            wishes=wishes,
            make_pricer=make_pricer,
            ignores_marks=options.ignores_marks,
            cache=find_cache(options.cache),
            is_new=is_new,
        )
        stack.callback(pricing.keep_tables)
        max_stages = _count_stages(pricing, wishes)
        search = TwoPassSearch(
            pricing=pricing,
            memory_limit_bytes=limit_bytes,
            deadline=deadline.part(_SEARCH if runs_plans else _ALONE),
            on_progress=options.on_progress or (lambda done, total, name: None),
        )
        most_rows = options.max_microbatch_size
        result = search.run(list_shapes(problem, target, wishes, max_stages=max_stages, max_microbatch_size=most_rows))
        candidates = _candidates(result, pricing, limit_bytes)
        plans = UsualPlans(
            search=search,
            pricing=pricing.of_recipes(RECIPES) if wishes.strategies else pricing,
            problem=problem,
            target=target,
            max_stages=max_stages,
            deadline=deadline.part(_USUAL) if runs_plans else deadline,
        )
        usual, too_large = _usual_candidates(plans)
    return _Found(
        result=result,
        pricing=pricing,
        candidates=candidates,
        usual=usual,
        too_large=too_large,
        num_programs=sum({id(one): one.num_programs for one in (pricing, plans.pricing)}.values()),
        notes=_notes(pricing),
        links=search.links,
        memory_limit_bytes=limit_bytes,
    )


def _count_stages(pricing: StepPricing, wishes: Wishes) -> int:
    """Returns the number of stages that the step has at most.

    Raises:
        PlanError: if the user wishes for more.
    """
    boundaries = pricing.find_boundaries()
    for name in {"stages", "actors"} & wishes.fixed.keys():
        check_stage_count(boundaries, int(wishes.fixed[name]))
    return 1 + sum(boundary.can_begin for boundary in boundaries)


def _describe_choice(found: _Found, chosen: Candidate, wishes: Wishes) -> Plan:
    """Returns the plan that was chosen, with all others beside it."""
    everyone = (*found.candidates, *found.usual)
    single = min(
        (one for one in everyone if has_single_axis(one.finalist.configuration)),
        key=lambda one: one.time_s,
        default=None,
    )
    baselines = [*found.usual, *found.too_large]
    if single is not None:
        # Of a family of long chains, the search takes the first that fits.
        tried = "of a long step, the usual ones and the first that fits" if is_long_chain(chosen.costs.segments) else ""
        note = "; ".join(filter(None, (single.note, tried)))
        baselines.append(replace(single, name=SINGLE_AXIS, note=note))
    return replace(
        name_axis(chosen.plan, wishes),
        baselines=tuple(_baseline(one, wishes) for one in baselines),
        alternatives=_alternatives(found, chosen),
        notes=(
            *found.notes,
            *_not_compared([*found.usual, *found.too_large]),
            *(one.failure for one in everyone if one.failure),
            *rematerialized_notes(everyone),
        ),
    )


def _alternatives(found: _Found, chosen: Candidate) -> tuple[PlanAlternative, ...]:
    """Returns those of the search, scaled as the plan that ran is; if another plan ran faster, those among the runs."""
    if chosen.finalist is not found.result.best:
        return compare_candidates(chosen, found.candidates)
    factor = chosen.time_s / chosen.finalist.time_s
    return tuple(replace(one, added_s=factor * one.added_s) for one in found.result.alternatives)


def _block_alternatives(
    found: _Found, chosen: Candidate, deadline: Deadline
) -> tuple[tuple[PlanAlternative, ...], int]:
    """Returns the alternatives to shardings, scaled as the plan that ran is, and the number of played steps."""
    if not deadline.has_time():
        deadline.left_out.append("the time budget left out alternatives to blocks")
        return (), 0
    shape = chosen.finalist.configuration
    others = find_block_alternatives(
        chosen.costs,
        shape.shape,
        chosen.finalist.assignment,
        played=chosen.finalist.played,
        links=found.links(shape),
        memory_limit_bytes=found.memory_limit_bytes,
    )
    if others.num_left_out:
        deadline.left_out.append(
            f"alternatives to blocks of {others.num_left_out} of {others.num_kinds} kinds: the step is long, and those "
            "with the most work come first"
        )
    factor = chosen.time_s / chosen.finalist.time_s
    return tuple(replace(one, added_s=factor * one.added_s) for one in others.found), others.num_played


def _check_state_fits(problem: PlanProblem, *, num_devices: int, limit_bytes: int) -> None:
    """Refuses a limit below an equal share of the state, which no plan can beat, before anything is priced."""
    sizes = problem.state_sizes()
    share_bytes = -(-sum(sizes.values()) // num_devices)
    if share_bytes <= limit_bytes:
        return
    largest = max(sizes, key=lambda name: sizes[name])
    weight_bytes = sum(sizes[name] for name in sizes.keys() & problem.weight_names())
    terms = {"weights": weight_bytes, "optimizer": sum(sizes.values()) - weight_bytes}
    raise InfeasiblePlanError(
        f"no plan fits {limit_bytes / 1e9:.3g} GB a device. The smallest needs {share_bytes / 1e9:.3g} GB or more, "
        f"most of it {max(terms, key=lambda name: terms[name])}: that is the minimum that state alone takes of each "
        f"of {num_devices} devices, if all of them share it ({largest} is the largest, {sizes[largest] / 1e9:.3g} GB "
        "whole). Use more devices, or keep less state."
    )


def name_axis(plan: Plan, wishes: Wishes) -> Plan:
    """Names the only axis of a plan by its use: one that shards rows alone is a data axis."""
    names = {name for stage in plan.stages for choice in stage.strategies for name in choice}
    axes = {DATA_AXIS: plan.axes.get(MODEL_AXIS, 1)}
    is_data = list(plan.axes) == [MODEL_AXIS] and names <= {"rows", "batch 0"} and wishes.allows_mesh(axes)
    return replace(plan, axes=axes) if is_data else plan


def wishes_allow(wishes: Wishes, configuration: PlanConfiguration) -> bool:
    """Returns true for a configuration that meets all wishes for settings."""
    is_set = all(wishes.allows_setting(part, configuration.part(part)) for part in PARTS)
    return is_set and wishes.allows_mesh(configuration.mesh)


def _candidates(result: PlanSearchResult, pricing: StepPricing, limit_bytes: int) -> list[Candidate]:
    """Returns the plans to choose from: the best, the best with each number of actors, then the others."""
    assert result.best is not None
    others = [one for one in result.families.values() if one is not None]
    # Finalists are the best by their estimates; as played, the best with some number of actors may be faster.
    ordered = [*sorted([result.best, *others], key=lambda one: one.time_s), *result.finalists]
    # Where no axis shards rows alone, all storages of state are the same plan.
    distinct: dict[object, PlanFinalist] = {}
    for one in ordered:
        distinct.setdefault((replace(one.configuration, storage=""), one.time_s, one.played.memory), one)
    return [_candidate(pricing, one, limit_bytes) for one in distinct.values()]


def _candidate(pricing: StepPricing, found: PlanFinalist, limit_bytes: int) -> Candidate:
    shape = found.configuration
    costs = pricing.costs(shape.mesh, shape.num_microbatches, storage=Storage(shape.storage), recompute=shape.recompute)
    assert costs is not None, "a finalist has costs"
    describe = functools.cache(lambda: describe_plan(pricing, found, memory_limit_bytes=limit_bytes))
    return Candidate(name="", finalist=found, costs=costs, make_plan=describe, time_s=found.time_s)


def _usual_candidates(plans: UsualPlans) -> tuple[list[Candidate], list[Candidate]]:
    """Returns the usual plans, and those that do not fit the memory."""
    found: dict[bool, list[Candidate]] = {True: [], False: []}
    for one in plans:
        describe = functools.partial(
            describe_plan,
            plans.pricing,
            one.finalist,
            prices=one.prices,
            costs=one.costs,
            memory_limit_bytes=plans.search.memory_limit_bytes,
        )
        candidate = Candidate(
            name=one.name,
            finalist=replace(one.finalist, assignment=replace(one.finalist.assignment, strategies=one.places)),
            costs=one.all_costs,
            make_plan=functools.cache(describe),
            time_s=one.finalist.time_s,
            follows_strategies=one.follows_strategies,
        )
        found[one.fits].append(candidate)
    return found[True], found[False]


def _choose(found: _Found, wishes: Wishes, options: PlanOptions) -> Candidate:
    """Returns the fastest; of those that ran, if any did.

    Estimates err, and a usual plan that no wish is against may be that after all.
    """
    most_rows = options.max_microbatch_size or math.inf
    allowed = [
        one
        for one in found.usual
        if one.finalist.configuration.microbatch_size <= most_rows
        and one.follows_strategies
        and wishes_allow(wishes, one.finalist.configuration)
    ]
    everyone = [*found.candidates, *allowed]
    known = [one for one in everyone if one.is_measured] or everyone
    chosen = min(known, key=lambda one: one.time_s)
    if chosen.failure:
        raise PlanError(f"none of the plans that the wishes leave runs on the devices here: {chosen.failure}")
    return chosen


def _baseline(found: Candidate, wishes: Wishes) -> PlanBaseline:
    plan = found.plan
    notes = [found.failure or found.note]
    if not found.follows_strategies:
        notes.append(f"does not follow {', '.join(map(str, wishes.strategies))}")
    return PlanBaseline(
        name=found.name,
        time_s=plan.time_s,
        memory_bytes=plan.memory_bytes,
        mfu=plan.mfu,
        fits=plan.memory_limit_bytes is None or plan.memory_bytes <= plan.memory_limit_bytes,
        note="; ".join(filter(None, notes)),
    )


def _not_compared(usual: Sequence[Candidate]) -> Iterator[str]:
    """Says which of the usual plans are not among the baselines."""
    missing = [name for name in USUAL_PLANS if not any(one.name.startswith(name) for one in usual)]
    if missing:
        yield f"not compared: {', '.join(missing)}: no device or row for it, or no time left"


def _notes(pricing: StepPricing) -> list[str]:
    notes = [f"not considered: a mesh of {dict(axes)}: {reason}" for (axes, _), reason in pricing.failures.items()]
    return list(dict.fromkeys(notes))
