"""The search over configurations: bounds prune, the rest is assigned, the fastest by their estimates are played.

Configurations are taken in the order of their bounds, which get tighter in steps: what the caller knows without prices,
then the times and bytes of the segments, then the schedule's profile, then the assignment itself. A configuration is
left out as soon as a bound is above the best estimate so far by more than estimates err.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from jaxquard.planner.stages.assign import SegmentAssigner
from jaxquard.planner.stages.chains.share_segments import share_equal
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.planner.stages.memory_terms import MinimumMemory
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
# Of a family, so many.
_FAMILY_SEEDS = 1
# Configurations of long chains that are assigned at most, beside those.
_MAX_TRIED = 16
# How tight a bound is: without costs of its own, with them, and with the schedule and the memory.
_FIRST, _PRICED, _LIMITED = range(3)
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
        time_budget_s: of the search; None for no limit.
    """

    def __init__(
        self,
        costs: Costs,
        *,
        bound: Callable[[PlanConfiguration], float],
        memory_limit_bytes: int | None,
        links: Callable[[PlanConfiguration], ActorLinks],
        time_budget_s: float | None = None,
        as_used: Callable[[PlanConfiguration], PlanConfiguration] | None = None,
    ) -> None:
        self._costs, self._bound, self._links, self._as_used = costs, bound, links, as_used
        self.memory_limit_bytes = memory_limit_bytes
        self._started_s = time.perf_counter()
        self.time_budget_s = time_budget_s
        self.num_simulated = 0
        self.unpriced: set[PlanConfiguration] = set()
        self.left_out: tuple[str, ...] = ()
        self._assigners: dict[tuple, SegmentAssigner | None] = {}
        self._likes: dict[tuple, SegmentAssigner | None] = {}
        # What families ask for again.
        self._bounds_s: dict[PlanConfiguration, float] = {}
        self._fits: dict[PlanConfiguration, bool] = {}
        self._estimates: dict[PlanConfiguration, StageAssignment] = {}
        # The largest time within which nothing was found: within less there is nothing either. Where the search drops
        # partial assignments that is likely, not certain, as it may keep others.
        self._slower_s: dict[PlanConfiguration, float] = {}
        self._tried: dict[PlanConfiguration, list[SegmentAssigner]] = {}
        self._played: dict[tuple[PlanConfiguration, int | None], PlanFinalist | None] = {}

    def find(
        self,
        space: Sequence[PlanConfiguration],
        num_finalists: int,
        on_progress: Callable[[int, int, str], None] = lambda done, total, name: None,
        *,
        is_family: bool = False,
    ) -> tuple[PlanFinalist, ...]:
        """Returns the fastest configurations as they play.

        Args:
            is_family: of long chains, the first one that fits is taken, in the order of their bounds.
        """
        finalists: list[PlanFinalist] = []
        for configuration, assignment in self.rank(space, on_progress, is_family=is_family).items():
            if len(finalists) >= num_finalists or (finalists and self.is_late()):
                break
            on_progress(len(space), len(space), f"playing {configuration}")
            finalist = self.play(configuration, assignment)
            if finalist is not None:
                finalists.append(finalist)
        return tuple(sorted(finalists, key=lambda finalist: finalist.time_s))

    def rank(
        self,
        space: Sequence[PlanConfiguration],
        on_progress: Callable[[int, int, str], None] = lambda done, total, name: None,
        *,
        is_family: bool = False,
    ) -> dict[PlanConfiguration, StageAssignment]:
        """Returns the assignments of the configurations that no bound leaves out, the fastest estimate first.

        Args:
            is_family: as in `find`.
        """
        queue = [(self._first_bound_s(one), _FIRST, place) for place, one in enumerate(space)]
        heapq.heapify(queue)
        found = self._seeds(space, queue, _FAMILY_SEEDS if is_family else _NUM_SEEDS)
        best_s = min((each.time_s for each in found.values()), default=float("inf"))
        num_tried = 0
        while queue:
            bound_s, level, place = heapq.heappop(queue)
            configuration, done = space[place], len(space) - len(queue)
            known_s = best_s * (1 + _MARGIN)
            if bound_s > known_s:
                break
            if found and is_family and self._is_long(configuration):
                break
            if found and (self.is_late() or num_tried >= _MAX_TRIED):
                # Played times may turn around what is this near.
                left = [space[left] for left_s, _, left in queue if left_s <= known_s]
                self._leave_out([configuration, *left], len(space), bound_s, best_s)
                break
            assigner = self.assigner(configuration)
            if assigner is None:
                self.unpriced.add(configuration)
                continue
            if level != _LIMITED:
                tighter_s = self._tighter_bound_s(configuration, assigner, level, known_s)
                if tighter_s <= known_s:
                    heapq.heappush(queue, (max(bound_s, tighter_s), level + 1, place))
                continue
            on_progress(done, len(space), str(configuration))
            num_tried += assigner.is_long
            assignment = self.estimate(configuration, known_s=known_s)
            if assignment is not None:
                found[configuration] = assignment
                best_s = min(best_s, assignment.time_s)
        kept = [(one, each) for one, each in found.items() if each.time_s <= best_s * (1 + _MARGIN)]
        return dict(sorted(kept, key=lambda item: item[1].time_s))

    def _tighter_bound_s(
        self, configuration: PlanConfiguration, assigner: SegmentAssigner, level: int, known_s: float
    ) -> float:
        if level == _FIRST:
            return assigner.bound_s(configuration.shape)
        bound_s = assigner.limited_bound_s(configuration.shape, self.memory_limit_bytes, known_s=known_s)
        return float("inf") if bound_s <= known_s and self._is_tried(configuration, assigner) else bound_s

    def _is_long(self, configuration: PlanConfiguration) -> bool:
        assigner = self.assigner(configuration)
        return assigner is not None and assigner.is_long

    def _is_tried(self, configuration: PlanConfiguration, assigner: SegmentAssigner) -> bool:
        """Says whether the same was tried with another storage, which changes nothing: of long chains alone."""
        if not assigner.is_long:
            return False
        others, count = self._tried.setdefault(replace(configuration, storage=""), []), configuration.num_microbatches
        if any(assigner is not other and assigner.is_like(other, count) for other in others):
            return True
        others.append(assigner)
        return False

    def _first_bound_s(self, configuration: PlanConfiguration) -> float:
        """Returns a bound before the configuration has costs: a microbatch costs what it does with state as used."""
        if configuration not in self._bounds_s:
            self._bounds_s[configuration] = self._find_first_bound_s(configuration)
        return self._bounds_s[configuration]

    def _find_first_bound_s(self, configuration: PlanConfiguration) -> float:
        bound_s = self._bound(configuration)
        if self._as_used is None:
            return bound_s
        key = configuration.priced_as
        if key not in self._likes:
            self._likes[key] = self.assigner(self._as_used(configuration))
        like = self._likes[key]
        return bound_s if like is None else max(bound_s, like.bound_s(configuration.shape, counts_step=False))

    def _seeds(
        self, space: Sequence[PlanConfiguration], queue: Sequence[tuple[float, int, int]], num_seeds: int
    ) -> dict[PlanConfiguration, StageAssignment]:
        """Returns a few configurations that surely fit, so that others are compared with something early.

        Args:
            queue: the first bound of each configuration, as a heap.
        """
        limit_bytes = self.memory_limit_bytes
        if limit_bytes is None:
            return {}
        promising, waiting = dict[tuple, int](), list(queue)
        while waiting and len(promising) < num_seeds and not self.is_late():
            bound_s, level, place = heapq.heappop(waiting)
            # Those that differ in their storage alone are much alike.
            configuration, key = space[place], space[place].priced_as[:-1]
            if key in promising:
                continue
            if level != _FIRST:
                promising[key] = place
                continue
            assigner = self.assigner(configuration)
            if assigner is None:
                continue
            if configuration not in self._fits:
                self._fits[configuration] = assigner.fits_fastest(configuration.shape, limit_bytes)
            if self._fits[configuration]:
                heapq.heappush(waiting, (max(bound_s, assigner.bound_s(configuration.shape)), _PRICED, place))
        found = self._estimate_some([space[place] for place in promising.values()])
        # Without a time that is known, memory rules out little: then any that fits helps.
        return found or self._estimate_some(self._smallest_first(space), max_found=1)

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

    @property
    def priced(self) -> frozenset[PlanConfiguration]:
        """The configurations with an estimate of their own."""
        return frozenset(self._estimates)

    @property
    def time_s(self) -> float:
        """The seconds since the search began."""
        return time.perf_counter() - self._started_s

    def allow_more(self, time_budget_s: float | None) -> None:
        """Gives the search so many seconds from now on; None for no limit."""
        self.time_budget_s = None if time_budget_s is None else self.time_s + time_budget_s

    def is_late(self) -> bool:
        """Says whether the time budget is over."""
        return self.time_budget_s is not None and self.time_s > self.time_budget_s

    def _leave_out(self, left: Sequence[PlanConfiguration], num_all: int, bound_s: float, best_s: float) -> None:
        """Notes configurations that may be faster, by their bounds, for which there is no time."""
        self.unpriced.update(left)
        open_share = max(0.0, 1 - bound_s / best_s) if best_s else 0.0
        reason = "the time budget" if self.is_late() else "the search of a long step"
        self.left_out += (
            f"{reason} left out {len(left)} of {num_all} configurations; by their bounds none of them is more than "
            f"{open_share:.0%} faster",
        )

    def assigner(self, configuration: PlanConfiguration) -> SegmentAssigner | None:
        """Returns the chain of a configuration; None if it has no costs."""
        key = configuration.priced_as
        if key not in self._assigners:
            chain = self._costs(configuration)
            self._assigners[key] = SegmentAssigner(share_equal(chain)) if len(chain) else None
        return self._assigners[key]

    def estimate(
        self, configuration: PlanConfiguration, *, known_s: float = float("inf"), has_limit: bool = True
    ) -> StageAssignment | None:
        """Returns the best assignment of a configuration; None if nothing fits, or is as fast as is known."""
        if has_limit and configuration in self._estimates:
            return self._estimates[configuration]
        if has_limit and known_s <= self._slower_s.get(configuration, -1.0):
            return None
        assigner = self.assigner(configuration)
        if assigner is None or assigner.bound_s(configuration.shape) > known_s:
            return None
        limit_bytes = self.memory_limit_bytes if has_limit else None
        if assigner.is_long and assigner.limited_bound_s(configuration.shape, limit_bytes, known_s=known_s) > known_s:
            return None
        found = assigner.assign(
            configuration.shape,
            memory_limit_bytes=limit_bytes,
            links=self._links(configuration),
            known_s=known_s,
            is_coarse=True,
        )
        if not found:
            if has_limit:
                self._slower_s[configuration] = known_s
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
            # Of long chains, what the search found is played as it is.
            if not assigner.is_long or not assignments:
                assignments += assigner.assign(
                    shape,
                    memory_limit_bytes=None if limit_bytes is None else limit_bytes - excess_bytes,
                    links=links,
                    max_finalists=1 if assigner.is_long else _ASSIGNMENTS_PLAYED,
                    is_coarse=assigner.is_long,
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
