"""The search over configurations: bounds prune, the rest is assigned, the fastest by their estimates are played.

Configurations are taken in the order of their bounds, which get tighter in steps: what the caller knows without prices,
then the times and bytes of the segments, then the schedule's profile, then the assignment itself. A configuration is
left out as soon as a bound is above the best estimate so far by more than estimates err.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jaxquard.planner.stages.assign import MinimumMemory, SegmentAssigner
from jaxquard.planner.stages.configuration import PlanConfiguration
from jaxquard.planner.stages.play_assignment import PlayedAssignment, play_assignment
from jaxquard.planner.stages.segment_costs import SegmentCosts, StageAssignment
from jaxquard.simulate.actor_link import ActorLinks

# Estimates that are this much above the best are not looked at further: as far as played times may turn them around.
_MARGIN = 0.05
# Assignments of one finalist that are played.
_ASSIGNMENTS_PLAYED = 3
# Where values in transfer need more memory than was counted, the limit is lowered by that, so many times.
_MAX_TIGHTENED = 3
# Configurations that are looked at before all others.
_NUM_SEEDS = 8
# Configurations whose smallest memory is found if none fits.
_SMALLEST_TRIED = 8

Costs = Callable[[PlanConfiguration], Sequence[SegmentCosts]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFinalist:
    """A configuration with its best assignment, played."""

    configuration: PlanConfiguration
    assignment: StageAssignment
    played: PlayedAssignment = field(repr=False)

    @property
    def time_s(self) -> float:
        """The played time of the step."""
        return self.played.time_s

    @property
    def memory_bytes(self) -> int:
        """The peak of the fullest device."""
        return max(self.played.peak_bytes)


class ConfigurationSearch:
    """Prices, assigns and plays configurations; prices and assignments that recur are found once.

    Attributes:
        unpriced: configurations without costs, or for which no time was left.
        num_simulated: assignments that were played.
        left_out: what the time budget left out.
    """

    def __init__(
        self,
        costs: Costs,
        *,
        bound: Callable[[PlanConfiguration], float],
        memory_limit_bytes: int | None,
        links: Callable[[PlanConfiguration], ActorLinks],
        started_s: float,
        as_used: Callable[[PlanConfiguration], PlanConfiguration] | None = None,
    ) -> None:
        self._costs, self._bound, self._links, self._as_used = costs, bound, links, as_used
        self.memory_limit_bytes, self._started_s = memory_limit_bytes, started_s
        self.time_budget_s: float | None = None
        self.num_simulated = 0
        self.unpriced: set[PlanConfiguration] = set()
        self.left_out: tuple[str, ...] = ()
        self._assigners: dict[tuple, SegmentAssigner | None] = {}
        self._estimates: dict[PlanConfiguration, StageAssignment] = {}
        self._played: dict[tuple[PlanConfiguration, int | None], PlanFinalist | None] = {}

    def find(
        self,
        space: Sequence[PlanConfiguration],
        num_finalists: int,
        on_progress: Callable[[int, int, str], None] = lambda done, total, name: None,
    ) -> tuple[PlanFinalist, ...]:
        """Returns the fastest configurations as they play."""
        estimates = self._estimate_all(space, on_progress)
        finalists: list[PlanFinalist] = []
        for configuration, assignment in sorted(estimates.items(), key=lambda item: item[1].time_s):
            if len(finalists) >= num_finalists or (finalists and self.is_late()):
                break
            on_progress(len(space), len(space), f"playing {configuration}")
            finalist = self.play(configuration, assignment)
            if finalist is not None:
                finalists.append(finalist)
        return tuple(sorted(finalists, key=lambda finalist: finalist.time_s))

    def _estimate_all(
        self, space: Sequence[PlanConfiguration], on_progress: Callable[[int, int, str], None]
    ) -> dict[PlanConfiguration, StageAssignment]:
        """Returns the assignments of the configurations that no bound leaves out."""
        queue = [(self._first_bound_s(one), False, place) for place, one in enumerate(space)]
        heapq.heapify(queue)
        found = self._seeds(space, queue)
        best_s = min((each.time_s for each in found.values()), default=float("inf"))
        while queue:
            bound_s, is_priced, place = heapq.heappop(queue)
            configuration, done = space[place], len(space) - len(queue)
            if bound_s > best_s * (1 + _MARGIN):
                break
            if found and self.is_late():
                self.unpriced.update(space[left] for *_, left in queue)
                self.unpriced.add(configuration)
                self.left_out = (self._say_left_out(len(queue) + 1, len(space), bound_s, best_s),)
                break
            assigner = self.assigner(configuration)
            if assigner is None:
                self.unpriced.add(configuration)
                continue
            if not is_priced:
                heapq.heappush(queue, (max(bound_s, assigner.bound_s(configuration.shape)), True, place))
                continue
            on_progress(done, len(space), str(configuration))
            assignment = self.estimate(configuration, known_s=best_s * (1 + _MARGIN))
            if assignment is not None:
                found[configuration] = assignment
                best_s = min(best_s, assignment.time_s)
        return {one: each for one, each in found.items() if each.time_s <= best_s * (1 + _MARGIN)}

    def _first_bound_s(self, configuration: PlanConfiguration) -> float:
        """Returns a bound before the configuration has costs: a microbatch costs what it does with state as used."""
        bound_s = self._bound(configuration)
        if self._as_used is None:
            return bound_s
        like = self.assigner(self._as_used(configuration))
        return bound_s if like is None else max(bound_s, like.bound_s(configuration.shape, counts_step=False))

    def _seeds(
        self, space: Sequence[PlanConfiguration], queue: Sequence[tuple[float, bool, int]]
    ) -> dict[PlanConfiguration, StageAssignment]:
        """Returns a few configurations that surely fit, so that others are compared with something early.

        Args:
            queue: the first bound of each configuration, as a heap.
        """
        promising, waiting = list[int](), list(queue)
        has_limit = self.memory_limit_bytes is not None
        while has_limit and waiting and len(promising) < _NUM_SEEDS and not self.is_late():
            bound_s, is_priced, place = heapq.heappop(waiting)
            if is_priced:
                promising.append(place)
                continue
            assigner, num_actors = self.assigner(space[place]), space[place].num_actors
            if assigner is not None and self._has_room(assigner.safe_share_bytes(num_actors)):
                heapq.heappush(waiting, (max(bound_s, assigner.bound_s(space[place].shape)), True, place))
        found = self._estimate_some([space[place] for place in promising])
        # Without a time that is known, memory rules out little: then any that fits helps.
        return found if found or not has_limit else self._estimate_some(self._smallest_first(space), max_found=1)

    def _estimate_some(
        self, configurations: Sequence[PlanConfiguration], max_found: int | None = None
    ) -> dict[PlanConfiguration, StageAssignment]:
        """Returns the assignments of some configurations, each faster than those before it."""
        found: dict[PlanConfiguration, StageAssignment] = {}
        for configuration in configurations:
            if found and (len(found) == max_found or self.is_late()):
                break
            best_s = min((each.time_s for each in found.values()), default=float("inf"))
            assignment = self.estimate(configuration, known_s=best_s)
            if assignment is not None:
                found[configuration] = assignment
        return found

    def _smallest_first(self, space: Sequence[PlanConfiguration]) -> list[PlanConfiguration]:
        """Returns the configurations that promise the smallest memory."""
        sizes = [
            (assigner.safe_share_bytes(one.num_actors), place)
            for place, one in enumerate(space)
            if (assigner := self.assigner(one)) is not None
        ]
        return [space[place] for _, place in heapq.nsmallest(_SMALLEST_TRIED, sizes)]

    def _has_room(self, size_bytes: float) -> bool:
        return self.memory_limit_bytes is None or size_bytes <= self.memory_limit_bytes

    @property
    def priced(self) -> frozenset[PlanConfiguration]:
        """The configurations with an estimate of their own."""
        return frozenset(self._estimates)

    def is_late(self) -> bool:
        """Says whether the time budget is over."""
        return self.time_budget_s is not None and time.perf_counter() - self._started_s > self.time_budget_s

    def _say_left_out(self, num_left: int, num_all: int, bound_s: float, best_s: float) -> str:
        open_share = max(0.0, 1 - bound_s / best_s) if best_s else 0.0
        return (
            f"the time budget of {self.time_budget_s:g} s left out {num_left} of {num_all} configurations; by their "
            f"bounds none of them is more than {open_share:.0%} faster"
        )

    def assigner(self, configuration: PlanConfiguration) -> SegmentAssigner | None:
        """Returns the chain of a configuration; None if it has no costs."""
        key = configuration.priced_as
        if key not in self._assigners:
            chain = self._costs(configuration)
            self._assigners[key] = SegmentAssigner(chain) if len(chain) else None
        return self._assigners[key]

    def estimate(
        self, configuration: PlanConfiguration, *, known_s: float = float("inf"), has_limit: bool = True
    ) -> StageAssignment | None:
        """Returns the best assignment of a configuration; None if nothing fits, or is as fast as is known."""
        if has_limit and configuration in self._estimates:
            return self._estimates[configuration]
        assigner = self.assigner(configuration)
        if assigner is None or assigner.bound_s(configuration.shape) > known_s:
            return None
        found = assigner.assign(
            configuration.shape,
            memory_limit_bytes=self.memory_limit_bytes if has_limit else None,
            links=self._links(configuration),
            known_s=known_s,
            is_coarse=True,
        )
        if not found:
            return None
        if has_limit:
            self._estimates[configuration] = found[0]
        return found[0]

    def play(
        self, configuration: PlanConfiguration, assignment: StageAssignment, *, has_limit: bool = True
    ) -> PlanFinalist | None:
        """Plays the best assignments of a configuration, and returns the fastest; None if it does not fit."""
        limit_bytes = self.memory_limit_bytes if has_limit else None
        key = configuration, limit_bytes
        if key not in self._played:
            self._played[key] = self._play(configuration, assignment, limit_bytes)
        return self._played[key]

    def _play(
        self, configuration: PlanConfiguration, assignment: StageAssignment, limit_bytes: int | None
    ) -> PlanFinalist | None:
        assigner, links = self.assigner(configuration), self._links(configuration)
        assert assigner is not None, "a configuration with an assignment has costs"
        excess_bytes, shape = 0, configuration.shape
        assignments: tuple[StageAssignment, ...] = (assignment,)
        for _ in range(1 + _MAX_TIGHTENED):
            assignments += assigner.assign(
                shape,
                memory_limit_bytes=None if limit_bytes is None else limit_bytes - excess_bytes,
                links=links,
                max_finalists=_ASSIGNMENTS_PLAYED,
            )
            played = [
                PlanFinalist(
                    configuration=configuration,
                    assignment=one,
                    played=play_assignment(assigner.chain, shape, one, links=links),
                )
                for one in {(one.stops, one.strategies): one for one in assignments}.values()
            ]
            self.num_simulated += len(played)
            fitting = [one for one in played if limit_bytes is None or one.memory_bytes <= limit_bytes]
            if fitting or not played:
                return min(fitting, key=lambda one: one.time_s, default=None)
            assert limit_bytes is not None, "without a limit everything fits"
            excess_bytes += min(one.memory_bytes for one in played) - limit_bytes
            assignments = ()
        return None

    def find_smallest(self, space: Sequence[PlanConfiguration]) -> tuple[PlanConfiguration, MinimumMemory] | None:
        """Returns the smallest memory of the configurations that promise the smallest."""
        sizes = []
        for place, configuration in enumerate(space):
            assigner = self.assigner(configuration)
            if assigner is not None:
                sizes.append((assigner.smallest_share_bytes(configuration.num_actors), place))
        best = None
        for _, place in heapq.nsmallest(_SMALLEST_TRIED, sizes):
            assigner = self.assigner(space[place])
            found = None if assigner is None else assigner.minimum_memory(space[place].shape)
            if found is not None and (best is None or found.size_bytes < best[1].size_bytes):
                best = space[place], found
        return best
