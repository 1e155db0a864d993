"""Prices the plans to choose from by their whole tasks, the best by the prices of their blocks first.

Measured prices of plans on virtual devices are minutes apart, or of another day, and the pace of a host that others use
changes as quickly. So where prices decide, the best plans are measured again at the end, one right after the other:
neither a fast minute decides, nor is the price of the plan that is taken an old one.
"""

import functools
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from jax.sharding import AbstractMesh

from jaxquard.errors import JaxquardError
from jaxquard.planner.search.candidates import Candidate, finest_first, scale_others
from jaxquard.planner.search.deadline import Deadline
from jaxquard.planner.search.live_pricing import abstract_mesh_of
from jaxquard.planner.search.measure_plans import describe_shape
from jaxquard.planner.search.price_tasks import PlayedPlan, price_tasks
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.task_pricers import TaskPricers
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.pricing import Pricer
from jaxquard.pricing.end_of_time import OutOfTimeError, check_time
from jaxquard.simulate.actor_link import ActorLinks

# The pace of a host changes by about as much, as a part of a time; so many plans that it may have hidden are looked at.
_CLOSE, _MOST_CLOSE = 0.25, 3
# A change of the pace that is worth a note.
_NOTED = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedCandidates:
    """The plans to choose from by their new prices.

    Attributes:
        candidates: the fastest first.
        usual: in their order.
        too_large: likewise.
        num_priced: programs that were priced.
        notes: the plans of which a task has no price, and a pace that changed.
    """

    candidates: Sequence[Candidate]
    usual: Sequence[Candidate]
    too_large: Sequence[Candidate]
    num_priced: int
    notes: tuple[str, ...]


def price_candidates(
    problem: PlanProblem,
    candidates: Sequence[Candidate],
    usual: Sequence[Candidate],
    too_large: Sequence[Candidate],
    *,
    num_whole: int,
    allowed: Sequence[Candidate],
    open_pricers: Callable[[], AbstractContextManager[TaskPricers]],
    open_again: Callable[[Sequence[float]], AbstractContextManager[TaskPricers]],
    links: Callable[[PlanConfiguration], ActorLinks],
    deadline: Deadline,
    on_progress: Callable[[int, int, str], None] | None,
) -> PricedCandidates:
    """Prices the tasks of so many candidates and of all usual plans whole, until the deadline.

    What is not priced so has the price of its blocks, scaled as those of the others.

    Args:
        allowed: those of which prices decide, of all; none if all that matters is which are worth a run.
        open_again: the same pricers for plans that have these prices, which they do not know.
    """
    prices = _WholePrices(problem, links, deadline, on_progress)
    with open_pricers() as pricers:
        prices.find(finest_first([*candidates[:num_whole], *usual]), pricers)
        may_change_pace = pricers.host is not None
    if may_change_pace and (close := prices.find_close(allowed)):
        with open_again([prices.before_s(one) for one in close]) as pricers:
            prices.find_again(close, pricers)
    return PricedCandidates(
        candidates=sorted(prices.reprice(candidates), key=lambda one: one.time_s),
        usual=prices.reprice(usual),
        too_large=prices.reprice(too_large),
        num_priced=prices.num_priced,
        notes=(*prices.notes, *prices.pace_notes()),
    )


class _WholePrices:
    """The plans that were priced by their whole tasks so far."""

    def __init__(
        self,
        problem: PlanProblem,
        links: Callable[[PlanConfiguration], ActorLinks],
        deadline: Deadline,
        on_progress: Callable[[int, int, str], None] | None,
    ) -> None:
        self._problem, self._links, self._deadline, self._on_progress = problem, links, deadline, on_progress
        self._found: dict[int, PlayedPlan] = {}
        # By the price before: plans that are the same program have the same, as the cache knows it.
        self._again: dict[float, PlayedPlan] = {}
        # The times of whole tasks, over the prices of blocks.
        self._factors: list[float] = []
        self.num_priced = 0
        self.notes: list[str] = []

    @property
    def pace(self) -> float:
        """The time of plans now, over that of before; 1 if none was priced again."""
        paces = [played.time_s / before_s for before_s, played in self._again.items()]
        return statistics.median(paces) if paces else 1.0

    def find(self, plans: Sequence[Candidate], pricers: TaskPricers) -> None:
        """Prices plans; why one has no price is a note."""
        for one, played in self._play_all(plans, pricers, doing="pricing", failed="not priced by its tasks"):
            self._found[id(one)] = played
            self._factors.append(played.time_s / one.price_s)
            self.num_priced += played.num_priced

    def before_s(self, one: Candidate) -> float:
        """Returns the first price of a plan that has one."""
        return self._found[id(one)].time_s

    def find_close(self, plans: Iterable[Candidate]) -> list[Candidate]:
        """Returns those of some plans that may be the best, the best last, whose price is then the newest."""
        priced = {self.before_s(one): one for one in plans if id(one) in self._found}
        times_s = sorted(priced)[:_MOST_CLOSE]
        return [priced[time_s] for time_s in reversed(times_s) if time_s <= (1 + _CLOSE) * times_s[0]]

    def find_again(self, plans: Sequence[Candidate], pricers: TaskPricers) -> None:
        """Prices plans once more, which have their prices now."""
        for one, played in self._play_all(plans, pricers, doing="pricing again", failed="not priced again"):
            self._again[self.before_s(one)] = played

    def reprice(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Returns candidates with their new prices, or scaled ones."""
        others = [one for one in candidates if id(one) not in self._found]
        scaled = scale_others(
            others,
            [self.pace * factor for factor in self._factors],
            note="the price of its blocks x {factor}, as of those with tasks",
        )
        updated = {id(one): replace(new, price_s=new.time_s) for one, new in zip(others, scaled, strict=True)}
        return [updated.get(id(one)) or self._reprice_whole(one) for one in candidates]

    def pace_notes(self) -> list[str]:
        """Says that the pace has changed, if it has."""
        if abs(self.pace - 1) <= _NOTED:
            return []
        return [f"the pace of this host changed: the best plans took {self.pace:.2f} of their prices of before"]

    def _reprice_whole(self, one: Candidate) -> Candidate:
        found = self._found[id(one)]
        again = self._again.get(found.time_s)
        time_s = self.pace * found.time_s if again is None else again.time_s
        timed = one.with_time(time_s, source=found.source)
        return replace(timed, price_s=time_s, is_whole=True, note=found.note)

    def _play_all(
        self, plans: Sequence[Candidate], pricers: TaskPricers, *, doing: str, failed: str
    ) -> Iterable[tuple[Candidate, PlayedPlan]]:
        """Yields those that have a price, until the deadline."""

        # A pricer may hold processes: plans on the same mesh share one.
        @functools.cache
        def pricer_of(mesh: AbstractMesh) -> Pricer:
            return pricers.make_pricer(mesh)

        for number, one in enumerate(plans):
            plan, shape = one.plan, one.finalist.configuration
            if self._on_progress is not None:
                self._on_progress(number, len(plans), f"{doing} the tasks of {describe_shape(plan)}")
            try:
                check_time(self._deadline.end_s)
                played = price_tasks(
                    self._problem,
                    plan,
                    pricer_of(abstract_mesh_of(shape.axes)),
                    links=self._links(shape),
                    host=pricers.host,
                    end_s=self._deadline.end_s,
                )
            except OutOfTimeError:
                count = len(plans) - number
                self._deadline.left_out.append(f"the time budget left out {doing} the whole tasks of {count} plans")
                return
            except JaxquardError as error:
                self.notes.append(f"{failed}: {describe_shape(plan)}: {error}")
                continue
            yield one, played
