"""Assigns the segments of a chain to the stages of a pipeline, and a strategy to each, in the minimum estimated time.

Exact, in two steps. The first ignores the memory: its best assignment is the best of all if it fits. If not, the second
keeps slower choices that need less memory as well. The estimate, and why it is a good one, is in `schedule_profile`;
the search is in `label_search`. The memory of an actor is

    the fixed bytes of its stages + the largest sum of activations that the schedule's order keeps at the same time
        + the largest working bytes of a stage, the values that enter and leave it among them
"""

import functools
from collections.abc import Sequence

import numpy as np

from jaxquard.errors import PlanError
from jaxquard.planner.stages.bounds.largest_stage import bound_largest_load_s
from jaxquard.planner.stages.bounds.memory_bound import MemoryBound
from jaxquard.planner.stages.bounds.relaxed_bound import RelaxedBound
from jaxquard.planner.stages.chains.label_search import FoundPath, LabelSearch
from jaxquard.planner.stages.chains.merge_segments import MergedChain, find_cheap_begins, merge_segments
from jaxquard.planner.stages.chains.quick_assignment import fastest_strategies, quick_time_s
from jaxquard.planner.stages.chains.range_options import MAX_CHOICES, RangeOptions
from jaxquard.planner.stages.chains.search_problem import FEW_SEGMENTS, search_problem
from jaxquard.planner.stages.chains.stage_problem import StageProblem
from jaxquard.planner.stages.memory_terms import MinimumMemory, count_memory_terms
from jaxquard.planner.stages.schedule_profile import ScheduleProfile, profile_schedule
from jaxquard.planner.stages.segment_costs import PipelineShape, SegmentCosts, StageAssignment
from jaxquard.simulate.actor_link import INSTANT, NO_LINKS, ActorLinks

# The estimate is not the played time: where several assignments are asked for, those this much slower come along.
_FINALIST_SLACK = 0.03
_MAX_DESCENTS = 50
# Where the fastest does not fit, something slower by at most this factor is looked for first.
_WITHIN = 1.3
# In longer chains, actors with several stages get fewer choices.
_LOOPED_CHOICES = 8
# In chains of more segments, stages begin only where few bytes enter: at most so many times the fewest nearby.
_LONG, _FEW_BYTES = 48, 2
# More than any device has, yet finite: memory is counted.
_NO_LIMIT_BYTES = 2.0**62


def assign_segments(
    chain: Sequence[SegmentCosts],
    shape: PipelineShape,
    *,
    memory_limit_bytes: int | None = None,
    links: ActorLinks = NO_LINKS,
    max_finalists: int = 1,
) -> tuple[StageAssignment, ...]:
    """Returns the assignments of the minimum estimated time, the fastest first; none if nothing fits the memory.

    Args:
        memory_limit_bytes: of a device; None for no limit.
        links: between actors; a pair that is not in it transfers in no time.
        max_finalists: how many to return at most; others than the first are little slower by the estimate.

    Raises:
        PlanError: if a segment has no strategy.
        ScheduleError: if the schedule does not exist, or not for so many stages and actors.
    """
    assigner = SegmentAssigner(chain)
    return assigner.assign(shape, memory_limit_bytes=memory_limit_bytes, links=links, max_finalists=max_finalists)


def is_long_chain(chain: Sequence[SegmentCosts]) -> bool:
    """Says whether a chain is so long that the search over many shapes must be brief."""
    return len(chain) > _LONG


class SegmentAssigner:
    """Assigns one chain under many shapes and limits; what they share is found once.

    Args:
        is_merged: the segments are runs of another chain's, and are merged no further.
    """

    def __init__(self, chain: Sequence[SegmentCosts], *, is_merged: bool = False) -> None:
        self.chain = tuple(chain)
        self._is_merged = is_merged
        for place, segment in enumerate(self.chain):
            if not segment.strategies:
                raise PlanError(
                    f"segment {place} of {len(self.chain)} has no strategy with a price. Leave its mesh out, or use "
                    "another pricer."
                )
        kinds = {segment.kind: segment for segment in self.chain}
        places = {kind: place for place, kind in enumerate(kinds)}
        minima = np.asarray([_minima(segment) for segment in kinds.values()], dtype=np.float64)
        self._times_s, self._steps_s = minima[[places[segment.kind] for segment in self.chain]].T
        # Most chains are asked for no more than bounds of their sums: the rest is made when it is needed.
        self._sums_s = float(self._times_s.sum()), float(self._steps_s.sum())
        self._fastest: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._small: dict[tuple[int | None, bool], RangeOptions] = {}
        self._merged: tuple[MergedChain, SegmentAssigner] | None = None

    @functools.cached_property
    def _memory(self) -> MemoryBound:
        return MemoryBound(self.chain)

    @functools.cached_property
    def _fast(self) -> RangeOptions:
        return RangeOptions(self.chain, counts_memory=False)

    @functools.cached_property
    def _input_bytes(self) -> np.ndarray:
        return np.asarray([0, *(segment.input_bytes for segment in self.chain[1:])], dtype=np.float64)

    @functools.cached_property
    def _begins(self) -> np.ndarray:
        """The segments with which stages may begin."""
        return np.asarray([0, *(place for place in range(1, len(self.chain)) if self.chain[place].can_begin_stage)])

    @functools.cached_property
    def _cheap_begins(self) -> tuple[int, ...]:
        return find_cheap_begins(self.chain, factor=_FEW_BYTES, reach=max(1, len(self.chain) // _LONG))

    @property
    def num_boundaries(self) -> int:
        """The places where stages may begin, but for the first."""
        return len(self._begins) - 1

    @functools.cached_property
    def _relaxed(self) -> RelaxedBound:
        return RelaxedBound(self.chain)

    @property
    def is_long(self) -> bool:
        """True for a chain so long that the search over many shapes must be brief."""
        return is_long_chain(self.chain)

    def has_stages(self, num_stages: int) -> bool:
        """Says whether the chain has boundaries for so many stages."""
        return num_stages <= self.num_boundaries + 1

    def assign(
        self,
        shape: PipelineShape,
        *,
        memory_limit_bytes: int | None = None,
        links: ActorLinks = NO_LINKS,
        max_finalists: int = 1,
        known_s: float = np.inf,
        is_coarse: bool = False,
    ) -> tuple[StageAssignment, ...]:
        """Returns the fastest assignments, as `assign_segments` does.

        Args:
            known_s: the time of a step that is known; assignments that are estimated slower are left out.
            is_coarse: keep fewer choices and labels, and take an assignment that is proven to be within 0.3 %.
        """
        if not self.has_stages(shape.num_stages):
            return ()
        if self._merges(shape.num_stages):
            merged, assigner = self._merge()
            found = assigner.assign(
                shape,
                memory_limit_bytes=memory_limit_bytes,
                links=links,
                max_finalists=max_finalists,
                known_s=known_s,
                is_coarse=is_coarse,
            )
            return tuple(map(merged.expand, found))
        profile = profile_schedule(shape)
        bound_s = self._estimate_bound_s(profile.fill_weight, profile.num_actors, profile.num_microbatches)
        if bound_s > known_s or not self._may_fit(profile, memory_limit_bytes, known_s):
            return ()
        slack = 1 + _FINALIST_SLACK * (max_finalists > 1)
        crossings_s = self._crossings_s(profile, links)
        limit_bytes = np.inf if memory_limit_bytes is None else float(memory_limit_bytes)
        # In long chains that hardly fit, if at all, only what is found at once is taken.
        is_brief = is_coarse and self.is_long and not self.fits_fastest(shape, memory_limit_bytes)
        if is_brief:
            fastest_s, is_small = max(bound_s, self._relaxed.bound_s(profile, limit_bytes)), True
            found, is_proven, problem = [], False, None
        else:
            if shape.num_microbatches not in self._fastest:
                self._fastest[shape.num_microbatches] = fastest_strategies(self.chain, shape.num_microbatches)
            quick_s = quick_time_s(self.chain, profile, crossings_s, self._fastest[shape.num_microbatches])
            problem = self._problem(self._fast, profile, crossings_s, min(known_s, quick_s * slack))
            found, is_proven = search_problem(problem, slack, known_s, is_coarse)
            is_small = bool(found) and problem.peak_bytes(found[0].options).max() > limit_bytes
            fastest_s = found[0].time_s if found else np.inf
        if is_small:
            for within_s in (_WITHIN * fastest_s, np.inf):
                options = self._small_options(memory_limit_bytes, profile, is_coarse)
                problem = self._problem(options, profile, crossings_s, min(known_s, within_s), limit_bytes)
                found, is_proven = search_problem(problem, slack, min(known_s, within_s), is_coarse, is_brief)
                if found or known_s <= within_s:
                    break
        assert problem is not None, "one of the two was searched"
        found = [path for path in found if problem.peak_bytes(path.options).max() <= limit_bytes]
        return tuple(_assignment(problem, path, is_proven) for path in found[:max_finalists])

    def _merges(self, num_stages: int) -> bool:
        """Says whether the segments between cheap boundaries are merged: in long chains that have enough of those."""
        return self.is_long and not self._is_merged and num_stages <= len(self._cheap_begins) < len(self.chain)

    def _merge(self) -> "tuple[MergedChain, SegmentAssigner]":
        if self._merged is None:
            merged = merge_segments(self.chain, self._cheap_begins)
            self._merged = merged, SegmentAssigner(merged.segments, is_merged=True)
        return self._merged

    def _problem(
        self,
        options: RangeOptions,
        profile: ScheduleProfile,
        crossings_s: np.ndarray,
        known_s: float,
        memory_limit_bytes: float = np.inf,
    ) -> StageProblem:
        """Returns the problem without the runs that, with all else at its bounds, take longer than is known."""
        max_load_s = self._max_load_s(profile, known_s) * (1 + 1e-9)
        table = options.table(profile.num_stages, num_microbatches=profile.num_microbatches, max_load_s=max_load_s)
        return StageProblem(
            table,
            profile,
            crossings_s=crossings_s,
            memory_limit_bytes=memory_limit_bytes,
            max_load_s=max_load_s,
            ends_s=np.append(0.0, np.cumsum(self._loads_s(profile.num_microbatches))),
        )

    def _loads_s(self, num_microbatches: int) -> np.ndarray:
        """Returns a bound on the load of each segment, from below."""
        return (num_microbatches - 1) * self._times_s + self._steps_s

    def _max_load_s(self, profile: ScheduleProfile, known_s: float) -> float:
        """Returns a bound on the load of a stage, if the step takes no longer than is known."""
        limit_s = known_s - profile.fill_weight * float(self._times_s.sum())
        if profile.num_chunks > 1 and profile.stage_weight:
            weight = profile.stage_weight
            mean_s = float(self._loads_s(profile.num_microbatches).sum()) / profile.num_actors
            limit_s = min(limit_s, (limit_s - (1 - weight) * mean_s) / (weight * profile.num_chunks))
        return limit_s

    def bound_s(self, shape: PipelineShape, *, counts_step: bool = True) -> float:
        """Returns a bound on the estimated time of any assignment, without playing the schedule.

        No schedule's fill is shorter than its actors' first tasks and a forward through all other actors.

        Args:
            counts_step: whether it has what runs once a step; the rest holds for all storages of state.
        """
        num_actors, num_chunks = shape.num_actors, shape.num_stages // shape.num_actors
        fill_weight = (num_chunks + (num_actors - 1) / 3) / shape.num_stages
        return self._estimate_bound_s(fill_weight, num_actors, shape.num_microbatches, counts_step)

    def limited_bound_s(
        self, shape: PipelineShape, memory_limit_bytes: int | None, *, known_s: float = np.inf
    ) -> float:
        """Returns a bound on the estimated time of any assignment that fits the memory.

        Args:
            known_s: the time of a step that is known; bounds above it need not be tight.

        Returns:
            The bound; infinite if nothing fits, or nothing that takes no longer than is known.
        """
        if not self.has_stages(shape.num_stages) or not self._has_room(shape.num_actors, memory_limit_bytes):
            return np.inf
        profile = profile_schedule(shape)
        bound_s = self._estimate_bound_s(profile.fill_weight, profile.num_actors, profile.num_microbatches)
        if bound_s <= known_s and not self._may_fit(profile, memory_limit_bytes, known_s):
            return np.inf
        if bound_s <= known_s and self._merges(shape.num_stages):
            return self._merge()[1].limited_bound_s(shape, memory_limit_bytes, known_s=known_s)
        if bound_s <= known_s and memory_limit_bytes is not None:
            bound_s = max(bound_s, self._relaxed.bound_s(profile, memory_limit_bytes, known_s=known_s))
        return max(bound_s, self._uneven_bound_s(profile)) if bound_s <= known_s else bound_s

    def _uneven_bound_s(self, profile: ScheduleProfile) -> float:
        """Returns a bound on the estimated time that knows that segments cannot be divided."""
        loads_s, weight = self._loads_s(profile.num_microbatches), profile.stage_weight
        largest_s = bound_largest_load_s(loads_s, self._begins, profile.num_stages)
        actor_s = max(largest_s, float(loads_s.sum()) / profile.num_actors)
        fill_s = profile.fill_weight * float(self._times_s.sum())
        if profile.num_chunks == 1:
            return fill_s + actor_s
        return fill_s + (1 - weight) * actor_s + weight * profile.num_chunks * largest_s

    def fits_fastest(self, shape: PipelineShape, memory_limit_bytes: int | None) -> bool:
        """Says whether equal shares of the fastest strategies fit."""
        if memory_limit_bytes is None:
            return True
        if not self.has_stages(shape.num_stages) or not self._has_room(shape.num_actors, memory_limit_bytes):
            return False
        return self._relaxed.fits_fastest(profile_schedule(shape), memory_limit_bytes)

    def is_like(self, other: "SegmentAssigner", num_microbatches: int) -> bool:
        """Says whether all costs of another chain are the same, up to a thousandth."""
        return len(self.chain) == len(other.chain) and self._relaxed.is_like(other._relaxed, num_microbatches)

    def _has_room(self, num_actors: int, memory_limit_bytes: int | None) -> bool:
        """Says False if not even equal shares with one microbatch fit."""
        return memory_limit_bytes is None or self.smallest_share_bytes(num_actors) <= memory_limit_bytes

    def smallest_share_bytes(self, num_actors: int) -> float:
        """Returns the smallest memory of an actor's equal share, with the activations of one microbatch."""
        return self._memory.smallest_bytes / num_actors

    def safe_share_bytes(self, num_actors: int) -> float:
        """Returns about the memory of an equal share that keeps the activations of all actors, and runs any segment."""
        memory = self._memory
        return float(memory.fixed.sum() / num_actors + memory.activations.sum() + memory.working.max())

    def _estimate_bound_s(
        self, fill_weight: float, num_actors: int, num_microbatches: int, counts_step: bool = True
    ) -> float:
        """Returns a bound on the estimated time, as if segments could be divided among the actors."""
        time_s, step_s = self._sums_s
        return fill_weight * time_s + ((num_microbatches - 1) * time_s + step_s * counts_step) / num_actors

    def _may_fit(self, profile: ScheduleProfile, memory_limit_bytes: float | None, known_s: float) -> bool:
        """Says False if no assignment fits that takes no longer than is known."""
        return memory_limit_bytes is None or self._memory.may_fit(
            profile,
            memory_limit_bytes,
            loads_s=self._loads_s(profile.num_microbatches),
            max_load_s=self._max_load_s(profile, known_s),
        )

    def minimum_memory(self, shape: PipelineShape) -> MinimumMemory | None:
        """Returns the assignment of the smallest memory; None if the chain has too few boundaries for the stages."""
        if not self.has_stages(shape.num_stages):
            return None
        profile = profile_schedule(shape)
        table = self._small_options(None, profile).table(shape.num_stages)
        crossings_s = np.zeros((shape.num_stages, len(self.chain)))
        limit_bytes, best, is_proven = _NO_LIMIT_BYTES, None, False
        for _ in range(_MAX_DESCENTS):
            problem = StageProblem(
                table, profile, crossings_s=crossings_s, memory_limit_bytes=limit_bytes, minimises_memory=True
            )
            search = LabelSearch(problem)
            found = search.find()
            if not found:
                is_proven = search.is_proven and table.is_whole
                break
            path = min(found, key=lambda path: problem.peak_bytes(path.options).max())
            best = problem, path
            if not problem.is_looped:
                is_proven = table.is_whole
                break
            limit_bytes = problem.peak_bytes(path.options).max() - 1
        assert best is not None, "without a limit everything fits"
        assignment = _assignment(*best, is_proven)
        terms = max(count_memory_terms(self.chain, assignment, profile), key=lambda terms: terms.total_bytes)
        return MinimumMemory(
            size_bytes=terms.total_bytes, terms=terms, assignment=assignment, is_proven=assignment.is_proven
        )

    def _small_options(
        self, memory_limit_bytes: int | None, profile: ScheduleProfile, is_coarse: bool = False
    ) -> RangeOptions:
        # Actors with several stages multiply the choices of each.
        is_large = len(self.chain) > FEW_SEGMENTS and (profile.num_chunks > 1 or is_coarse)
        key = memory_limit_bytes, is_large
        if key not in self._small:
            self._small[key] = RangeOptions(
                self.chain,
                counts_memory=True,
                memory_limit_bytes=memory_limit_bytes,
                max_choices=_LOOPED_CHOICES if is_large else MAX_CHOICES,
            )
        return self._small[key]

    def _crossings_s(self, profile: ScheduleProfile, links: ActorLinks) -> np.ndarray:
        """Returns the weighted time of the transfer into each stage, for each segment with which it begins."""
        crossings_s = np.zeros((profile.num_stages, len(self.chain)))
        for stage, (source, target) in enumerate(zip(profile.actor_of, profile.actor_of[1:], strict=False), 1):
            if source != target:
                link = links.get((source, target), INSTANT)
                times_s = link.latency_s + self._input_bytes / link.bandwidth_bytes_per_s
                crossings_s[stage] = profile.transfer_weight * times_s
        return crossings_s


def _minima(segment: SegmentCosts) -> tuple[float, float]:
    """Returns the minimum over strategies of the times of a microbatch and of what runs once a step."""
    return float(segment.costs.microbatch_s.min()), float(segment.costs.column("step_s").min())


def _assignment(problem: StageProblem, path: FoundPath, is_proven: bool) -> StageAssignment:
    table, options = problem.table, list(path.options)
    return StageAssignment(
        stops=tuple(table.stops[options].tolist()),
        strategies=tuple(strategy for option in options for strategy in table.strategies(option)),
        time_s=path.time_s,
        peak_bytes=tuple(round(size) for size in problem.peak_bytes(options).tolist()),
        is_proven=is_proven,
    )
