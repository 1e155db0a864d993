"""Prices the plans to choose from by their whole tasks, the best by the prices of their blocks first."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jaxquard.errors import JaxquardError
from jaxquard.planner.search.candidates import Candidate, scale_others
from jaxquard.planner.search.deadline import Deadline
from jaxquard.planner.search.live_pricing import abstract_mesh_of
from jaxquard.planner.search.measure_plans import describe_shape
from jaxquard.planner.search.measured_host import MeasuredHost
from jaxquard.planner.search.price_tasks import price_tasks
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.step_pricing import MakePricer
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.simulate.actor_link import ActorLinks


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedCandidates:
    """The plans to choose from by their new prices.

    Attributes:
        candidates: the fastest first.
        usual: in their order.
        too_large: likewise.
        num_tasks: that were priced.
        notes: the plans of which a task has no price.
    """

    candidates: Sequence[Candidate]
    usual: Sequence[Candidate]
    too_large: Sequence[Candidate]
    num_tasks: int
    notes: tuple[str, ...]


def price_candidates(
    problem: PlanProblem,
    candidates: Sequence[Candidate],
    usual: Sequence[Candidate],
    too_large: Sequence[Candidate],
    *,
    num_whole: int,
    make_pricer: MakePricer,
    links: Callable[[PlanConfiguration], ActorLinks],
    host: MeasuredHost | None,
    deadline: Deadline,
    on_progress: Callable[[int, int, str], None] | None,
) -> PricedCandidates:
    """Prices the tasks of so many candidates and of all usual plans whole, until the deadline.

    What is not priced so has the price of its blocks, scaled as those of the others.

    Args:
        host: where the pricer measures the tasks; None if it measures none.
    """
    prices = _WholePrices(problem, make_pricer, links, host=host)
    tried = [*candidates[:num_whole], *usual]
    longest_s = 0.0
    for number, one in enumerate(tried):
        if not deadline.has_time(longest_s):
            deadline.left_out.append(f"the time budget left out whole tasks of {len(tried) - number} plans")
            break
        if on_progress is not None:
            on_progress(number, len(tried), f"pricing the tasks of {describe_shape(one.plan)}")
        start_s = time.monotonic()
        prices.find(one)
        longest_s = max(longest_s, time.monotonic() - start_s)
    return PricedCandidates(
        candidates=sorted(prices.reprice(candidates), key=lambda one: one.time_s),
        usual=prices.reprice(usual),
        too_large=prices.reprice(too_large),
        num_tasks=prices.num_tasks,
        notes=tuple(prices.notes),
    )


class _WholePrices:
    """The plans that were priced by their whole tasks so far."""

    def __init__(
        self,
        problem: PlanProblem,
        make_pricer: MakePricer,
        links: Callable[[PlanConfiguration], ActorLinks],
        *,
        host: MeasuredHost | None,
    ) -> None:
        self._problem, self._links, self._host = problem, links, host
        # A pricer may hold processes: plans on the same mesh share one.
        self._pricer_of = functools.cache(lambda axes: make_pricer(abstract_mesh_of(axes)))
        self._found: dict[int, Candidate] = {}
        self._factors: list[float] = []
        self.num_tasks = 0
        self.notes: list[str] = []

    def find(self, one: Candidate) -> None:
        """Prices a plan; why it has no price is a note."""
        plan, shape = one.plan, one.finalist.configuration
        try:
            played = price_tasks(
                self._problem,
                plan,
                self._pricer_of(shape.axes),
                links=self._links(shape),
                host=self._host,
            )
        except JaxquardError as error:
            self.notes.append(f"not priced by its tasks: {describe_shape(plan)}: {error}")
            return
        self.num_tasks += played.num_tasks
        self._factors.append(played.time_s / one.price_s)
        timed = one.with_time(played.time_s, source="played with the prices of its whole tasks")
        self._found[id(one)] = replace(timed, price_s=played.time_s, is_whole=True, note="whole tasks")

    def reprice(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Returns candidates with their new prices, or scaled ones."""
        others = [one for one in candidates if id(one) not in self._found]
        scaled = scale_others(others, self._factors, note="the price of its blocks x {factor}, as of those with tasks")
        updated = {id(one): replace(new, price_s=new.time_s) for one, new in zip(others, scaled, strict=True)}
        return [self._found.get(id(one)) or updated[id(one)] for one in candidates]
