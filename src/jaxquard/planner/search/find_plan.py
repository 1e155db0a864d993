"""Finds the plan of a step for a cluster.

1. The usual plans are priced, by the pricer that was asked for if there is time, so that no plan is worse.
2. Every mesh of an actor is priced in closed form with two numbers of microbatches; with others its costs lie between.
3. Every configuration gets its stages by the exact assignment, the most promising ones first; bounds prune.
4. The best meshes and numbers of microbatches are priced as they are, by the pricer that was asked for, and their
   configurations played again.
5. The tasks of the best are priced whole, with measured prices or if that is asked for, and their programs played.
6. Where the devices are at hand, the best of each kind run on them, and the fastest is the plan.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from jaxquard.errors import PlanError, UnsplitLossError
from jaxquard.planner.record.plan import Plan, PlanAlternative, PlanBaseline
from jaxquard.planner.record.tables import bytes_text
from jaxquard.planner.search.block_alternatives import find_block_alternatives
from jaxquard.planner.search.candidates import Candidate, scale_others
from jaxquard.planner.search.deadline import Deadline
from jaxquard.planner.search.list_shapes import has_single_axis
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.price_whole import price_whole
from jaxquard.planner.search.pricers import make_pricers
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.run_candidates import compare_candidates, rematerialized_notes, run_candidates
from jaxquard.planner.search.search_by_prices import FoundPlans, search_by_prices
from jaxquard.planner.search.targets import PlanTarget
from jaxquard.planner.search.two_passes import SINGLE_AXIS
from jaxquard.planner.search.usual_plans import USUAL_PLANS
from jaxquard.planner.stages.assign import is_long_chain
from jaxquard.planner.stages.configurations.configuration import PARTS, PlanConfiguration
from jaxquard.planner.stages.configurations.space import DATA_AXIS, MODEL_AXIS, PRODUCT_AXES
from jaxquard.planner.wishes import Wishes, parse_wishes
from jaxquard.pricing import RooflinePricer
from jaxquard.progress import Move, show_progress
from jaxquard.runtime.remote_mesh import RemoteMesh

_log = logging.getLogger(__name__)
# Of the time that a search leaves, the share of whole tasks where plans run as well, and where they do not.
_TASKS, _TASKS_ALONE = 0.5, 0.85
# Of the time that these leave, the share of runs: the plan is still to be described.
_RUNS = 0.9
# Plans whose tasks are priced whole where nothing runs, so that prices decide.
_NUM_WHOLE = 3
# Few whole tasks are measured, each more often than the many blocks.
_TASK_RUNS = 30


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
    runner = make_mesh if options.num_measured > 0 else None
    deadline = Deadline.after(options.find_budget_s(has_runs=runner is not None))
    with show_progress(options.progress, "planning") as move:
        while True:
            try:
                found = _find_plan(problem, target, options, move, deadline, runner=runner)
                problem.check_split(found.num_microbatches)
                return found
            except UnsplitLossError as error:
                # The loss is proved for the fewest and the most microbatches; others when they are chosen.
                problem = problem.without_count(error)


def _find_plan(
    problem: PlanProblem,
    target: PlanTarget,
    options: PlanOptions,
    move: Move,
    deadline: Deadline,
    *,
    runner: Callable[[Plan], RemoteMesh] | None,
) -> Plan:
    start_s = time.monotonic()
    wishes = parse_wishes(options.fix, options.forbid)
    wishes.check(num_devices=target.num_devices, global_batch=problem.rows, axes=(DATA_AXIS, MODEL_AXIS, *PRODUCT_AXES))
    num_whole = _count_whole(options, has_runs=runner is not None)
    tries_plans = runner is not None or num_whole > 0
    found = search_by_prices(problem, target, options, wishes, deadline, move, tries_plans=tries_plans)
    # Plans that are tried are traced all the same; of others, the one that is chosen.
    num_tried = num_whole + (options.num_measured if runner else 0)
    used = [*found.candidates[:num_tried], *found.usual] if tries_plans else [_choose(found, wishes, options)]
    if not all(map(found.is_current, used)):
        _log.info("the cache has prices of another step; this one is priced anew")
        found = search_by_prices(problem, target, options, wishes, deadline, move, tries_plans=tries_plans, is_new=True)
    if num_whole:
        found = _price_whole(
            found,
            problem,
            target,
            options,
            deadline.part(_TASKS if runner else _TASKS_ALONE),
            move,
            num_whole=num_whole,
        )
    if runner is not None:
        candidates, usual = run_candidates(
            problem,
            found.candidates[: options.num_measured],
            found.usual,
            allowed=[one for one in _find_allowed(found, wishes, options) if one.name],
            make_mesh=runner,
            deadline=deadline.part(_RUNS),
            on_progress=move,
        )
        factors = [one.time_s / one.price_s for one in (*candidates, *usual) if one.is_measured and not one.failure]
        note = "not run; its price x {factor}, as of those that ran"
        too_large = scale_others(found.too_large, factors, note=note)
        found = replace(found, candidates=candidates, usual=usual, too_large=too_large)
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


def _count_whole(options: PlanOptions, *, has_runs: bool) -> int:
    """Returns the number of plans whose tasks are priced whole."""
    if options.num_whole is not None:
        return options.num_whole
    return _NUM_WHOLE if options.pricer == "measure" and not has_runs else 0


def _price_whole(
    found: FoundPlans,
    problem: PlanProblem,
    target: PlanTarget,
    options: PlanOptions,
    deadline: Deadline,
    move: Move,
    *,
    num_whole: int,
) -> FoundPlans:
    """Returns the plans with the prices of their whole tasks."""
    with make_pricers(options.pricer, target, cache=options.cache, num_runs=_TASK_RUNS) as make_pricer:
        priced = price_whole(
            problem,
            found.candidates,
            found.usual,
            found.too_large,
            num_whole=num_whole,
            make_pricer=make_pricer or (lambda mesh: RooflinePricer(target.cluster, mesh)),
            links=found.links,
            deadline=deadline,
            on_progress=move,
        )
    return replace(
        found,
        candidates=priced.candidates,
        usual=priced.usual,
        too_large=priced.too_large,
        num_programs=found.num_programs + priced.num_priced,
        notes=(*found.notes, *priced.notes),
    )


def _describe_choice(found: FoundPlans, chosen: Candidate, wishes: Wishes) -> Plan:
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
            *_cost_of_one_microbatch(found, chosen),
            *found.notes,
            *_not_compared([*found.usual, *found.too_large]),
            *(one.failure for one in everyone if one.failure),
            *rematerialized_notes(everyone),
        ),
    )


def _cost_of_one_microbatch(found: FoundPlans, chosen: Candidate) -> Iterator[str]:
    """Says why the loss has one microbatch, and what that costs."""
    problem, memory = found.pricing.problem, chosen.plan.memory
    if not problem.note:
        return
    share = memory.activation_bytes / max(1, memory.total_bytes)
    yield (
        f"{problem.note} One microbatch keeps the activations of all {problem.rows} rows at once, "
        f"{bytes_text(memory.activation_bytes)} or {share:.0%} of the fullest device, and stages of a pipeline would "
        "wait for each other."
    )


def _alternatives(found: FoundPlans, chosen: Candidate) -> tuple[PlanAlternative, ...]:
    """Returns those of the search, scaled as the plan that ran is; if another plan ran faster, those among the runs."""
    if chosen.finalist is not found.result.best:
        # Those whose tasks were priced are compared among themselves.
        others = [one for one in found.candidates if chosen.is_measured or one.is_whole == chosen.is_whole]
        return compare_candidates(chosen, others)
    factor = chosen.time_s / chosen.finalist.time_s
    return tuple(replace(one, added_s=factor * one.added_s) for one in found.result.alternatives)


def _block_alternatives(
    found: FoundPlans, chosen: Candidate, deadline: Deadline
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


def _find_allowed(found: FoundPlans, wishes: Wishes, options: PlanOptions) -> list[Candidate]:
    """Returns the plans to choose from.

    Estimates err, and a usual plan that no wish is against may be the best after all.
    """
    most_rows = options.max_microbatch_size or math.inf
    allowed = [
        one
        for one in found.usual
        if one.finalist.configuration.microbatch_size <= most_rows
        and one.follows_strategies
        and wishes_allow(wishes, one.finalist.configuration)
    ]
    return [*found.candidates, *allowed]


def _choose(found: FoundPlans, wishes: Wishes, options: PlanOptions) -> Candidate:
    """Returns the fastest; of those that ran, if any did, or else of those of which most is known."""
    everyone = _find_allowed(found, wishes, options)
    whole, fine = [one for one in everyone if one.is_whole], [one for one in everyone if one.is_fine]
    known = [one for one in everyone if one.is_measured] or whole or fine or everyone
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
        yield f"not compared: {', '.join(missing)}: no device or row for it"
