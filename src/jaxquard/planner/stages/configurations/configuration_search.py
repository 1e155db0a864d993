"""The search over configurations: taken in the order of what they promise, assigned, and the best of them played.

A configuration's promise gets better in steps: a bound that the caller knows without prices, then what its segments
take if they could be divided among the actors (`equal_shares`), then its assignment. The search ends where the next one
promises nothing that playing could make the fastest, or, in long chains, after some assignments. None of this is a
proof: the log says how many were considered, assigned and played.
"""

import heapq
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from jaxquard.planner.stages.assign import SegmentAssigner
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.planner.stages.play_assignment import PlayedAssignment, play_assignment
from jaxquard.planner.stages.segment_costs import PipelineShape, SegmentCosts, StageAssignment, content_of, share_equal
from jaxquard.simulate.actor_link import ActorLinks

# Configurations that promise to be slower than the best by this much are not assigned; those whose assignments are
# estimated slower by this much are not played: as far as played times may turn them around.
_PROMISE_MARGIN, _MARGIN = 0.02, 0.05
# Assignments of a configuration that are played.
_ASSIGNMENTS_PLAYED = 3
# Where values in transfer need more memory than was counted, the limit is lowered by that, so many times.
_MAX_TIGHTENED = 3
# Configurations of long chains that are assigned at most, once something fits.
_MAX_ASSIGNED = 12
# Configurations whose smallest memory is found if none fits.
_SMALLEST_TRIED = 8
# What a configuration's promise is made of: a bound without its costs, or its costs in equal shares.
_BOUND, _ESTIMATE = range(2)

Costs = Callable[[PlanConfiguration], Sequence[SegmentCosts]]
OnProgress = Callable[[int, int, str], None]


def no_progress(done: int, total: int, name: str) -> None:
    """Reports nothing."""


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
    """Prices, assigns and plays configurations; each is assigned and played once.

    Args:
        options: as of `search_configurations`.

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
        self._by_content: dict[Hashable, SegmentAssigner] = {}
        self._bounds_s: dict[PlanConfiguration, float] = {}
        self._assigned: dict[tuple[PlanConfiguration, bool], tuple[StageAssignment, ...]] = {}
        self._played: dict[tuple[PlanConfiguration, bool], PlanFinalist | None] = {}

    def find(
        self,
        space: Sequence[PlanConfiguration],
        num_finalists: int,
        on_progress: OnProgress = no_progress,
        **options: bool,
    ) -> tuple[PlanFinalist, ...]:
        """Returns the fastest configurations as they play.

        Args:
            options: of `rank`.
        """
        finalists: list[PlanFinalist] = []
        for configuration in self.rank(space, on_progress, **options):
            if len(finalists) >= num_finalists or (finalists and self.is_late()):
                break
            on_progress(len(space), len(space), f"playing {configuration}")
            finalist = self.play(configuration)
            if finalist is not None:
                finalists.append(finalist)
        return tuple(sorted(finalists, key=lambda finalist: finalist.time_s))

    def rank(
        self,
        space: Sequence[PlanConfiguration],
        on_progress: OnProgress = no_progress,
        *,
        is_brief: bool = False,
        has_limit: bool = True,
    ) -> tuple[PlanConfiguration, ...]:
        """Returns the configurations of the fastest assignments, the fastest first.

        Args:
            is_brief: of long chains, the first one that fits is taken.
            has_limit: of memory.
        """
        queue = [(self._bound_s(one), _BOUND, place) for place, one in enumerate(space)]
        heapq.heapify(queue)
        found: dict[PlanConfiguration, float] = {}
        seen = set[tuple[SegmentAssigner, PipelineShape]]()
        best_s, num_assigned = float("inf"), 0
        while queue:
            promise_s, level, place = heapq.heappop(queue)
            configuration = space[place]
            if promise_s > best_s * (1 + _PROMISE_MARGIN) or promise_s == float("inf"):
                break
            if found and (self.is_late() or num_assigned >= (1 if is_brief else _MAX_ASSIGNED)):
                left = [space[left] for left_s, _, left in queue if left_s <= best_s]
                if not is_brief:
                    self._leave_out([configuration, *left], len(space), promise_s, best_s)
                break
            assigner = self.assigner(configuration)
            if assigner is None:
                self.unpriced.add(configuration)
            elif (assigner, configuration.shape) in seen:
                continue
            elif level == _BOUND:
                estimate_s = assigner.estimate_s(configuration.shape, self.memory_limit_bytes if has_limit else None)
                heapq.heappush(queue, (max(promise_s, estimate_s), _ESTIMATE, place))
            else:
                on_progress(len(space) - len(queue), len(space), str(configuration))
                seen.add((assigner, configuration.shape))
                num_assigned += assigner.is_long
                for assignment in self.assign(configuration, has_limit=has_limit)[:1]:
                    found[configuration] = assignment.time_s
                    best_s = min(best_s, assignment.time_s)
        near = [one for one, time_s in found.items() if time_s <= best_s * (1 + _MARGIN)]
        return tuple(sorted(near, key=lambda one: found[one]))

    def _bound_s(self, configuration: PlanConfiguration) -> float:
        """Returns a bound before the configuration has costs: a microbatch costs what it does with state as used."""
        if configuration not in self._bounds_s:
            bound_s = self._bound(configuration)
            like = None if self._as_used is None else self.assigner(self._as_used(configuration))
            like_s = 0.0 if like is None else like.bound_s(configuration.shape, counts_step=False)
            self._bounds_s[configuration] = max(bound_s, like_s)
        return self._bounds_s[configuration]

    @property
    def priced(self) -> frozenset[PlanConfiguration]:
        """The configurations with an assignment."""
        return frozenset(one for (one, has_limit), found in self._assigned.items() if found and has_limit)

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

    def _leave_out(self, left: Sequence[PlanConfiguration], num_all: int, promise_s: float, best_s: float) -> None:
        """Notes configurations that may be faster, by what they promise, for which there is no time."""
        self.unpriced.update(left)
        open_share = max(0.0, 1 - promise_s / best_s) if best_s else 0.0
        reason = "the time budget" if self.is_late() else "the search of a long step"
        self.left_out += (
            f"{reason} left out {len(left)} of {num_all} configurations; by their bounds none of them is more than "
            f"{open_share:.0%} faster",
        )

    def assigner(self, configuration: PlanConfiguration) -> SegmentAssigner | None:
        """Returns the chain of a configuration; None if it has no costs."""
        key = configuration.priced_as
        if key not in self._assigners:
            chain = share_equal(self._costs(configuration))
            # Where no axis shards rows alone, all storages of state have the same costs.
            known = self._by_content.setdefault(content_of(chain), SegmentAssigner(chain)) if chain else None
            self._assigners[key] = known
        return self._assigners[key]

    def assign(self, configuration: PlanConfiguration, *, has_limit: bool = True) -> tuple[StageAssignment, ...]:
        """Returns the best assignments of a configuration, the fastest first; none if nothing fits."""
        key = configuration, has_limit
        if key not in self._assigned:
            limit_bytes = self.memory_limit_bytes if has_limit else None
            self._assigned[key] = self._assign(configuration, limit_bytes, is_rough=True)
        return self._assigned[key]

    def _assign(
        self, configuration: PlanConfiguration, limit_bytes: int | None, *, is_rough: bool
    ) -> tuple[StageAssignment, ...]:
        assigner = self.assigner(configuration)
        assert assigner is not None, "a configuration that is assigned has costs"
        return assigner.assign(
            configuration.shape,
            memory_limit_bytes=limit_bytes,
            links=self._links(configuration),
            max_finalists=1 if is_rough else _ASSIGNMENTS_PLAYED,
            is_rough=is_rough,
        )

    def play(self, configuration: PlanConfiguration, *, has_limit: bool = True) -> PlanFinalist | None:
        """Plays the best assignments of a configuration, and returns the fastest; None if it does not fit."""
        key = configuration, has_limit
        if key not in self._played:
            self._played[key] = self._play(configuration, has_limit=has_limit)
        return self._played[key]

    def _play(self, configuration: PlanConfiguration, *, has_limit: bool) -> PlanFinalist | None:
        limit_bytes = self.memory_limit_bytes if has_limit else None
        assigner, excess_bytes = self.assigner(configuration), 0
        is_rough = assigner is not None and assigner.is_long
        assignments = self.assign(configuration, has_limit=has_limit)
        for _ in range(1 + _MAX_TIGHTENED):
            if not is_rough or not assignments:
                tightened = None if limit_bytes is None else limit_bytes - excess_bytes
                assignments += self._assign(configuration, tightened, is_rough=is_rough)
            played = [self._play_one(configuration, one) for one in dict.fromkeys(assignments)]
            fitting = [one for one in played if limit_bytes is None or one.memory_bytes <= limit_bytes]
            if fitting or limit_bytes is None or not played:
                return min(fitting, key=lambda one: one.time_s, default=None)
            excess_bytes += min(one.memory_bytes for one in played) - limit_bytes
            assignments = ()
        return None

    def _play_one(self, configuration: PlanConfiguration, assignment: StageAssignment) -> PlanFinalist:
        assigner = self.assigner(configuration)
        assert assigner is not None, "a configuration with an assignment has costs"
        self.num_simulated += 1
        links = self._links(configuration)
        played = play_assignment(assigner.chain, configuration.shape, assignment, links=links)
        return PlanFinalist(configuration=configuration, assignment=assignment, played=played)

    def find_smallest(self, space: Sequence[PlanConfiguration]) -> PlanFinalist | None:
        """Returns the smallest memory of the configurations that promise the smallest."""
        sizes = [
            (assigner.smallest_share_bytes(one.num_actors), place)
            for place, one in enumerate(space)
            if (assigner := self.assigner(one)) is not None
        ]
        found = []
        for _, place in heapq.nsmallest(_SMALLEST_TRIED, sizes):
            assigner = self.assigner(space[place])
            assignment = None if assigner is None else assigner.minimum_memory(space[place].shape)
            if assignment is not None:
                found.append(self._play_one(space[place], assignment))
        return min(found, key=lambda one: one.memory_bytes, default=None)
