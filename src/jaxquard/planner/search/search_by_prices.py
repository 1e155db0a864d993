"""Searches by prices: the plans that it leaves to choose from, and the usual ones."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jaxquard.errors import InfeasiblePlanError
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.record.plan import PlanSearchLog
from jaxquard.planner.search.candidates import Candidate
from jaxquard.planner.search.deadline import Deadline
from jaxquard.planner.search.describe_plan import describe_plan
from jaxquard.planner.search.list_shapes import list_shapes
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.pricers import find_cache, make_pricers
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.search.targets import PlanTarget
from jaxquard.planner.search.two_passes import TwoPassSearch
from jaxquard.planner.search.usual_plans import RECIPES, UsualPlans
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.planner.stages.configurations.configuration_search import PlanFinalist
from jaxquard.planner.stages.configurations.search import PlanSearchResult
from jaxquard.planner.step.stage_boundaries import check_stage_count
from jaxquard.planner.wishes import Wishes
from jaxquard.progress import Move
from jaxquard.simulate.actor_link import ActorLinks

# Of a time budget, the share of the search where plans run or have their tasks priced as well, and where they do not,
# as the plan is still to be described; and of that, the share of the usual plans, which come first.
_SEARCH, _ALONE, _USUAL = 0.5, 0.85, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlans:
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


def search_by_prices(
    problem: PlanProblem,
    target: PlanTarget,
    options: PlanOptions,
    wishes: Wishes,
    deadline: Deadline,
    move: Move,
    *,
    tries_plans: bool,
    is_new: bool = False,
) -> FoundPlans:
    """Prices the usual plans, then finds the best ones.

    Args:
        move: called with (done, total, what is done).
        tries_plans: leaves a share of the time to runs, or to whole tasks.
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
            move=move,
        )
        stack.callback(pricing.keep_tables)
        max_stages = _count_stages(pricing, wishes)
        deadline = deadline.part(_SEARCH if tries_plans else _ALONE)
        search = TwoPassSearch(pricing=pricing, memory_limit_bytes=limit_bytes, deadline=deadline, on_progress=move)
        plans = UsualPlans(
            search=search,
            pricing=pricing.of_recipes(RECIPES) if wishes.strategies else pricing,
            problem=problem,
            target=target,
            max_stages=max_stages,
            deadline=deadline.part(_USUAL),
        )
        usual, too_large = _usual_candidates(plans)
        most_rows = options.max_microbatch_size
        result = search.run(list_shapes(problem, target, wishes, max_stages=max_stages, max_microbatch_size=most_rows))
        candidates = _candidates(result, pricing, limit_bytes)
    return FoundPlans(
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
        check_stage_count(boundaries, int(wishes.fixed[name]), name_loops=pricing.name_loops)
    return 1 + sum(boundary.can_begin for boundary in boundaries)


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
    return Candidate(
        name="",
        finalist=found,
        costs=costs,
        make_plan=describe,
        time_s=found.time_s,
        price_s=found.time_s,
        is_fine=pricing.is_fine,
    )


def _usual_candidates(plans: UsualPlans) -> tuple[list[Candidate], list[Candidate]]:
    """Returns the usual plans, and those that do not fit the memory."""
    found: dict[bool, list[Candidate]] = {True: [], False: []}
    for one in plans.find():
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
            price_s=one.finalist.time_s,
            is_fine=plans.pricing.is_fine,
            follows_strategies=one.follows_strategies,
        )
        found[one.fits].append(candidate)
    return found[True], found[False]


def _notes(pricing: StepPricing) -> list[str]:
    notes = [f"not considered: a mesh of {dict(axes)}: {reason}" for (axes, _), reason in pricing.failures.items()]
    return list(dict.fromkeys(notes))
