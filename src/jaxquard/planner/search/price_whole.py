"""Prices the plans to choose from by their whole tasks, the best by the prices of their blocks first."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from jax.sharding import AbstractMesh

from jaxquard.errors import JaxquardError
from jaxquard.planner.search.candidates import Candidate, finest_first, scale_others
from jaxquard.planner.search.deadline import Deadline
from jaxquard.planner.search.live_pricing import abstract_mesh_of
from jaxquard.planner.search.measure_plans import describe_shape
from jaxquard.planner.search.price_tasks import PlayedPlan, price_tasks
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.step_pricing import MakePricer
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.pricing import Pricer
from jaxquard.pricing.end_of_time import OutOfTimeError, check_time
from jaxquard.simulate.actor_link import ActorLinks

_SCALED = "the price of its blocks x {factor}, as of those with tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedCandidates:
    """The plans to choose from by their new prices.

    Attributes:
        candidates: the fastest first.
        usual: in their order.
        too_large: likewise.
        num_priced: programs that were priced.
        notes: the plans of which a task has no price.
    """

    candidates: Sequence[Candidate]
    usual: Sequence[Candidate]
    too_large: Sequence[Candidate]
    num_priced: int
    notes: tuple[str, ...]


def price_whole(
    problem: PlanProblem,
    candidates: Sequence[Candidate],
    usual: Sequence[Candidate],
    too_large: Sequence[Candidate],
    *,
    num_whole: int,
    make_pricer: MakePricer,
    links: Callable[[PlanConfiguration], ActorLinks],
    deadline: Deadline,
    on_progress: Callable[[int, int, str], None] | None,
) -> PricedCandidates:
    """Prices the tasks of so many candidates and of all usual plans whole, until the deadline.

    What is not priced so has the price of its blocks, scaled as those of the others.
    """
    notes: list[str] = []
    plans = finest_first([*candidates[:num_whole], *usual])
    played = _play_all(problem, plans, make_pricer, links=links, deadline=deadline, notes=notes, move=on_progress)
    found = {id(one): (one, result) for one, result in played}
    factors = [result.time_s / one.price_s for one, result in found.values()]

    def reprice(some: Sequence[Candidate]) -> list[Candidate]:
        others = [one for one in some if id(one) not in found]
        scaled = zip(others, scale_others(others, factors, note=_SCALED), strict=True)
        updated = {id(one): replace(new, price_s=new.time_s) for one, new in scaled}
        return [updated.get(id(one)) or _as_whole(*found[id(one)]) for one in some]

    return PricedCandidates(
        candidates=sorted(reprice(candidates), key=lambda one: one.time_s),
        usual=reprice(usual),
        too_large=reprice(too_large),
        num_priced=sum(result.num_priced for _, result in found.values()),
        notes=tuple(notes),
    )


def _as_whole(one: Candidate, played: PlayedPlan) -> Candidate:
    timed = one.with_time(played.time_s, source="played with the prices of its whole tasks")
    return replace(timed, price_s=played.time_s, is_whole=True, note="whole tasks")


def _play_all(
    problem: PlanProblem,
    plans: Sequence[Candidate],
    make_pricer: MakePricer,
    *,
    links: Callable[[PlanConfiguration], ActorLinks],
    deadline: Deadline,
    notes: list[str],
    move: Callable[[int, int, str], None] | None,
) -> Iterator[tuple[Candidate, PlayedPlan]]:
    """Yields those that have a price, until the deadline; why one has none is a note."""

    # A pricer may hold processes: plans on the same mesh share one.
    @functools.cache
    def pricer_of(mesh: AbstractMesh) -> Pricer:
        return make_pricer(mesh)

    for number, one in enumerate(plans):
        plan, shape = one.plan, one.finalist.configuration
        if move is not None:
            move(number, len(plans), f"pricing the tasks of {describe_shape(plan)}")
        try:
            check_time(deadline.end_s)
            pricer = pricer_of(abstract_mesh_of(shape.axes))
            yield one, price_tasks(problem, plan, pricer, links=links(shape), end_s=deadline.end_s)
        except OutOfTimeError:
            count = len(plans) - number
            deadline.left_out.append(f"the time budget left out pricing the whole tasks of {count} plans")
            return
        except JaxquardError as error:
            notes.append(f"not priced by its tasks: {describe_shape(plan)}: {error}")
