"""Assigns the segments of a chain to the stages of a pipeline, and a strategy to each, in the minimum estimated time.

Exact, in two steps. The first ignores the memory: its best assignment is the best of all if it fits. If not, the second
keeps slower choices that need less memory as well. The estimate, and why it is a good one, is in `schedule_profile`;
the search is in `label_search`. The memory of an actor is

    the fixed bytes of its stages + the largest sum of activations that the schedule's order keeps at the same time
        + the largest working bytes of a stage, the values that enter and leave it among them
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxquard.errors import PlanError
from jaxquard.planner.record.plan import MemoryTerms
from jaxquard.planner.stages.label_search import FoundPath, LabelSearch
from jaxquard.planner.stages.range_options import OptionTable, RangeOptions
from jaxquard.planner.stages.schedule_profile import ScheduleProfile, profile_schedule
from jaxquard.planner.stages.segment_costs import PipelineShape, SegmentCosts, StageAssignment
from jaxquard.planner.stages.stage_problem import StageProblem, bound_completions, find_incumbents
from jaxquard.simulate.actor_link import INSTANT, NO_LINKS, ActorLinks

# The estimate is not the played time: where several assignments are asked for, those this much slower come along.
_FINALIST_SLACK = 0.03
_MAX_DESCENTS = 50
# More than any device has, yet finite: memory is counted.
_NO_LIMIT_BYTES = 2.0**62


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumMemory:
    """The assignment of the smallest memory.

    Attributes:
        size_bytes: of the fullest device.
        terms: the same, by what they hold.
        is_proven: whether no other assignment needs less.
    """

    size_bytes: int
    terms: MemoryTerms
    assignment: StageAssignment
    is_proven: bool = True

    @property
    def largest_term(self) -> str:
        """What most of it holds: "weights", "gradients", "optimizer", "activations" or "working"."""
        sizes = {
            "weights": self.terms.weight_bytes,
            "gradients": self.terms.gradient_bytes,
            "optimizer": self.terms.optimizer_bytes,
            "activations": self.terms.activation_bytes,
            "working": self.terms.working_bytes,
        }
        return max(sizes, key=lambda name: sizes[name])


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


class SegmentAssigner:
    """Assigns one chain under many shapes and limits; what they share is found once."""

    def __init__(self, chain: Sequence[SegmentCosts]) -> None:
        self.chain = tuple(chain)
        for place, segment in enumerate(self.chain):
            if not segment.strategies:
                raise PlanError(
                    f"segment {place} of {len(self.chain)} has no strategy with a price. Leave its mesh out, or use "
                    "another pricer."
                )
        self.num_boundaries = sum(segment.can_begin_stage for segment in self.chain[1:])
        self._input_bytes = np.asarray([0, *(segment.input_bytes for segment in self.chain[1:])], dtype=np.float64)
        self._fast = RangeOptions(self.chain, counts_memory=False)
        self._small: dict[int | None, RangeOptions] = {}

    def assign(
        self,
        shape: PipelineShape,
        *,
        memory_limit_bytes: int | None = None,
        links: ActorLinks = NO_LINKS,
        max_finalists: int = 1,
        known_s: float = np.inf,
    ) -> tuple[StageAssignment, ...]:
        """Returns the fastest assignments, as `assign_segments` does.

        Args:
            known_s: the time of a step that is known; assignments that are estimated slower are left out.
        """
        if shape.num_stages > self.num_boundaries + 1:
            return ()
        profile = profile_schedule(shape)
        slack = 1 + _FINALIST_SLACK * (max_finalists > 1)
        crossings_s = self._crossings_s(profile, links)
        problem = StageProblem(self._fast.table(shape.num_stages), profile, crossings_s=crossings_s)
        found, is_proven = _search(problem, slack, known_s)
        limit_bytes = np.inf if memory_limit_bytes is None else float(memory_limit_bytes)
        if found and problem.peak_bytes(found[0].options).max() > limit_bytes:
            table = self._small_options(memory_limit_bytes).table(shape.num_stages)
            problem = StageProblem(table, profile, crossings_s=crossings_s, memory_limit_bytes=limit_bytes)
            found, is_proven = _search(problem, slack, known_s)
        found = [path for path in found if problem.peak_bytes(path.options).max() <= limit_bytes]
        return tuple(_assignment(problem, path, is_proven) for path in found[:max_finalists])

    def bound_s(self, shape: PipelineShape) -> float:
        """Returns a bound on the time of a step of any assignment, without playing the schedule."""
        times_s = [min(cost.microbatch_s for cost in segment.strategies) for segment in self.chain]
        steps_s = [min(cost.step_s for cost in segment.strategies) for segment in self.chain]
        return max(sum(times_s), (shape.num_microbatches * sum(times_s) + sum(steps_s)) / shape.num_actors)

    def minimum_memory(self, shape: PipelineShape) -> MinimumMemory | None:
        """Returns the assignment of the smallest memory; None if the chain has too few boundaries for the stages."""
        if shape.num_stages > self.num_boundaries + 1:
            return None
        profile = profile_schedule(shape)
        table = self._small_options(None).table(shape.num_stages)
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
        terms = max(memory_terms(self.chain, assignment, profile), key=lambda terms: terms.total_bytes)
        return MinimumMemory(
            size_bytes=terms.total_bytes, terms=terms, assignment=assignment, is_proven=assignment.is_proven
        )

    def _small_options(self, memory_limit_bytes: int | None) -> RangeOptions:
        if memory_limit_bytes not in self._small:
            self._small[memory_limit_bytes] = RangeOptions(
                self.chain, counts_memory=True, memory_limit_bytes=memory_limit_bytes
            )
        return self._small[memory_limit_bytes]

    def _crossings_s(self, profile: ScheduleProfile, links: ActorLinks) -> np.ndarray:
        """Returns the weighted time of the transfer into each stage, for each segment with which it begins."""
        crossings_s = np.zeros((profile.num_stages, len(self.chain)))
        for stage, (source, target) in enumerate(zip(profile.actor_of, profile.actor_of[1:], strict=False), 1):
            if source != target:
                link = links.get((source, target), INSTANT)
                times_s = link.latency_s + self._input_bytes / link.bandwidth_bytes_per_s
                crossings_s[stage] = profile.transfer_weight * times_s
        return crossings_s


def _search(problem: StageProblem, slack: float, known_s: float) -> tuple[list[FoundPath], bool]:
    """Returns assignments, the fastest first, and whether the first is proven to be the fastest."""
    known = [
        FoundPath(options=tuple(path), time_s=problem.time_s(path))
        for path in find_incumbents(problem)
        if problem.peak_bytes(path).max() <= problem.limit_bytes
    ]
    best_s = min([known_s, *(path.time_s for path in known)])
    completions = bound_completions(problem)
    num_actors = problem.profile.num_actors
    largest_s = max(completions.bottlenecks_s[0, 0], completions.loads_s[0, 0] / num_actors)
    is_best = best_s <= (completions.fills_s[0, 0] + largest_s) * (1 + 1e-12)
    if is_best and slack == 1 and known:
        return sorted(known, key=lambda path: path.time_s), problem.table.is_whole
    search = LabelSearch(problem, known_s=best_s * slack)
    found = {path.options: path for path in (*search.find(), *known)}
    return sorted(found.values(), key=lambda path: path.time_s), search.is_proven and problem.table.is_whole


def _assignment(problem: StageProblem, path: FoundPath, is_proven: bool) -> StageAssignment:
    table, options = problem.table, list(path.options)
    return StageAssignment(
        stops=tuple(table.stops[options].tolist()),
        strategies=tuple(strategy for option in options for strategy in table.strategies(option)),
        time_s=path.time_s,
        peak_bytes=tuple(round(size) for size in problem.peak_bytes(options).tolist()),
        is_proven=is_proven,
    )


def memory_terms(
    chain: Sequence[SegmentCosts], assignment: StageAssignment, profile: ScheduleProfile
) -> tuple[MemoryTerms, ...]:
    """Returns the memory of each actor by what it holds, counted as the search counts it."""
    starts = (0, *assignment.stops[:-1])
    costs = [segment.strategies[chosen] for segment, chosen in zip(chain, assignment.strategies, strict=True)]
    stages = [costs[start:stop] for start, stop in zip(starts, assignment.stops, strict=True)]
    entering = [chain[start].input_bytes if start else 0 for start in (*starts, 0)]
    activations = np.asarray([sum(cost.activation_bytes for cost in stage) for stage in stages])
    kept = profile.kept @ activations
    terms = []
    for actor in range(profile.num_actors):
        own = [stage for stage in range(profile.num_stages) if profile.actor_of[stage] == actor]
        parts = [cost for stage in own for cost in stages[stage]]
        working = [
            max(cost.working_bytes for cost in stages[stage]) + entering[stage] + entering[stage + 1] for stage in own
        ]
        terms.append(
            MemoryTerms(
                weight_bytes=sum(cost.weight_bytes for cost in parts),
                gradient_bytes=sum(cost.gradient_bytes for cost in parts),
                optimizer_bytes=sum(cost.optimizer_bytes for cost in parts),
                activation_bytes=int(kept[profile.kept_actors == actor].max()),
                working_bytes=max(working),
            )
        )
    return tuple(terms)
