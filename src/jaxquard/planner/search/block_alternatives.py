"""The next best sharding of each block: the chosen stages played again with another strategy of one segment.

All else stays as it is: the stages, the strategies of the other segments, schedule and microbatches; reshards to the
neighbours inside of the stage count as they do in the estimate. Of all strategies that shard a block differently, the
next best is the one with the smallest work that fits the memory; if none fits, the memory decides.

Segments of one kind and strategy on stages that are alike are changed once, among the neighbours that most of them
have. A plan of very many kinds has the alternatives of the most expensive ones; the others are counted.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxquard.planner.prices.step_costs import StepCosts, without_single_axes
from jaxquard.planner.record.plan import PlanAlternative
from jaxquard.planner.stages.configurations.alternatives import largest_rise
from jaxquard.planner.stages.play_assignment import PlayedAssignment, play_stages, sum_stage, sum_stages
from jaxquard.planner.stages.schedule_profile import profile_schedule
from jaxquard.planner.stages.segment_costs import PipelineShape, SegmentCost, StageAssignment
from jaxquard.simulate.actor_link import NO_LINKS, ActorLinks

# Tasks that are played at most; a play by itself takes as long as some. About 0.3 s of one core.
_MOST_TASKS, _TASKS_OF_A_PLAY = 30_000, 200
# So many kinds have alternatives, however long the step is.
_MIN_KINDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAlternatives:
    """The alternatives to the shardings of blocks.

    Attributes:
        found: by the numbers of blocks, of one segment of each kind.
        num_kinds: of segments that have another strategy, on each kind of stage.
        num_left_out: of those, the ones that were not played.
        num_played: the steps that were played.
    """

    found: tuple[PlanAlternative, ...]
    num_kinds: int
    num_left_out: int
    num_played: int


def find_block_alternatives(
    costs: StepCosts,
    shape: PipelineShape,
    assignment: StageAssignment,
    *,
    links: ActorLinks = NO_LINKS,
    memory_limit_bytes: int | None = None,
    played: PlayedAssignment | None = None,
) -> BlockAlternatives:
    """Finds the next best sharding of blocks, what it adds to the step, and the term that decides.

    Args:
        costs: of all strategies; the assignment has the places of its own among them.
        links: between actors.
        memory_limit_bytes: of a device; None for no limit.
        played: the assignment, if it was played before with the same links.
    """
    changes = _Changes(costs, shape, assignment, links, memory_limit_bytes, played)
    places = [place for place in _list_places(costs, assignment) if changes.rank_others(place.segment)]
    tasks = _TASKS_OF_A_PLAY + 2 * shape.num_stages * shape.num_microbatches
    found: list[PlanAlternative] = []
    num_done = 0
    for place in places:
        if num_done >= _MIN_KINDS and (changes.num_played + 1) * tasks > _MOST_TASKS:
            break
        found += changes.of_blocks(place)
        num_done += 1
    return BlockAlternatives(
        found=tuple(sorted(found, key=lambda one: int(one.part.split()[1]))),
        num_kinds=len(places),
        num_left_out=len(places) - num_done,
        num_played=changes.num_played,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A segment that stands for those that are alike.

    Attributes:
        work_s: of one microbatch in all of them.
    """

    segment: int
    stage: int
    work_s: float


def _list_places(costs: StepCosts, assignment: StageAssignment) -> list[_Place]:
    """Returns a place for each kind of segment, then one on each other kind of stage; those with the most work first.

    The strategy of a segment is part of its kind.
    """
    chain, chosen = costs.segments, assignment.strategies
    bounds = [*itertools.pairwise((0, *assignment.stops))]
    kinds = [(segment.kind, place) for segment, place in zip(chain, chosen, strict=True)]
    alike: dict[object, list[int]] = defaultdict(list)
    for stage, (start, stop) in enumerate(bounds):
        alike[tuple((kinds[one], id(chain[one].reshards_s)) for one in range(start, stop))].append(stage)
    found: dict[tuple[int, int], list[_Place]] = defaultdict(list)
    for stages in alike.values():
        start, stop = bounds[stages[0]]
        for kind in dict.fromkeys(kinds[start:stop]):
            members = [one for one in range(start, stop) if kinds[one] == kind]
            found[kind].append(
                _Place(
                    segment=_find_usual(kinds, members, start, stop),
                    stage=stages[0],
                    work_s=len(stages) * len(members) * chain[members[0]].strategies[kind[1]].microbatch_s,
                )
            )
    ordered = [sorted(places, key=_work_s, reverse=True) for places in found.values()]
    firsts, others = (places[0] for places in ordered), (place for places in ordered for place in places[1:])
    return [*sorted(firsts, key=_work_s, reverse=True), *sorted(others, key=_work_s, reverse=True)]


def _work_s(place: _Place) -> float:
    return place.work_s


def _find_usual(kinds: Sequence[tuple[int, int]], members: Sequence[int], start: int, stop: int) -> int:
    """Returns the first of the segments that has the neighbours in its stage that most of them have."""
    around = {one: (*kinds[max(start, one - 1) : one], None, *kinds[one + 1 : min(stop, one + 2)]) for one in members}
    usual = Counter(around.values()).most_common(1)[0][0]
    return next(one for one in members if around[one] == usual)


class _Changes:
    """Plays an assignment with changes of one segment."""

    def __init__(
        self,
        costs: StepCosts,
        shape: PipelineShape,
        assignment: StageAssignment,
        links: ActorLinks,
        memory_limit_bytes: int | None,
        played: PlayedAssignment | None,
    ) -> None:
        self._costs, self._shape, self._links = costs, shape, links
        self._limit_bytes, self._assignment = memory_limit_bytes, assignment
        self._bounds = [*itertools.pairwise((0, *assignment.stops))]
        self._totals = sum_stages(costs.segments, assignment)
        pairs = zip(costs.segments, assignment.strategies, strict=True)
        self._chosen: list[SegmentCost] = [segment.strategies[place] for segment, place in pairs]
        if played is None or played.stages != self._totals:
            played = play_stages(self._totals, shape, links=links)
        self._base = played
        self._most_kept = profile_schedule(shape).most_kept.tolist()
        self.num_played = 0

    def rank_others(self, segment: int) -> list[int]:
        """Returns the places of a segment's other strategies, those with the smallest work first."""
        names = [without_single_axes(one, self._costs.axes) for one in self._costs.strategies[segment]]
        chosen = names[self._assignment.strategies[segment]]
        others = [place for place, other in enumerate(names) if other != chosen]
        return sorted(others, key=lambda place: self._work_s(segment, place))

    def _work_s(self, segment: int, place: int) -> float:
        """Returns the seconds of a step in a segment with a strategy, and in the reshards to its neighbours."""
        chain, chosen = self._costs.segments, self._chosen
        start, stop = next(bounds for bounds in self._bounds if bounds[0] <= segment < bounds[1])
        cost = chain[segment].strategies[place]
        microbatch_s = cost.microbatch_s
        before, after = chain[segment].reshards_s, chain[segment + 1].reshards_s if segment + 1 < stop else None
        if segment > start and before is not None:
            microbatch_s += float(before[chosen[segment - 1].exit, cost.entry])
        if after is not None:
            microbatch_s += float(after[cost.exit, chosen[segment + 1].entry])
        return self._shape.num_microbatches * microbatch_s + cost.step_s

    def of_blocks(self, place: _Place) -> Iterator[PlanAlternative]:
        """Yields the alternative of each block of a segment."""
        strategies, axes = self._costs.strategies[place.segment], self._costs.axes
        chosen = strategies[self._assignment.strategies[place.segment]]
        own = without_single_axes(chosen, axes)
        ranked, played = self.rank_others(place.segment), dict[int, PlayedAssignment]()
        for number, block in enumerate(self._costs.blocks[place.segment]):
            others = [one for one in ranked if without_single_axes(strategies[one], axes)[number] != own[number]]
            if not others:
                continue
            best = self._first_that_fits(place, others, played)
            changed = without_single_axes(strategies[best], axes)
            num_more = sum(one != other for one, other in zip(own, changed, strict=True)) - 1
            more = f" (with {num_more} other block{'s' * (num_more > 1)})" if num_more else ""
            yield PlanAlternative(
                part=f"block {block}",
                chosen="/".join(chosen[number]),
                alternative="/".join(strategies[best][number]) + more,
                added_s=played[best].time_s - self._base.time_s,
                added_bytes=max(played[best].peak_bytes) - max(self._base.peak_bytes),
                deciding=self._find_deciding(played[best]),
            )

    def _first_that_fits(self, place: _Place, others: Sequence[int], played: dict[int, PlayedAssignment]) -> int:
        """Returns the first strategy that fits; if none does, the one of the smallest added work."""
        for one in [one for one in others if self._may_fit(place, one)] or others[:1]:
            if one not in played:
                played[one] = self._play(place, one)
            if self._fits(played[one]):
                return one
        return min((one for one in others if one in played), key=lambda one: played[one].time_s)

    def _may_fit(self, place: _Place, other: int) -> bool:
        """Says False for a strategy that surely does not fit: the peak moves by what is there all the time, or more."""
        if self._limit_bytes is None:
            return True
        old, new = self._chosen[place.segment], self._costs.segments[place.segment].strategies[other]
        shrinks = self._most_kept[place.stage] * min(0, new.activation_bytes - old.activation_bytes)
        shrinks += min(0, new.working_bytes - old.working_bytes)
        peak_bytes = self._base.peak_bytes[self._base.actor_of[place.stage]]
        return peak_bytes + new.fixed_bytes - old.fixed_bytes + shrinks <= self._limit_bytes

    def _fits(self, played: PlayedAssignment) -> bool:
        return self._limit_bytes is None or max(played.peak_bytes) <= self._limit_bytes

    def _play(self, place: _Place, other: int) -> PlayedAssignment:
        chain = self._costs.segments
        chosen = [*self._chosen]
        chosen[place.segment] = chain[place.segment].strategies[other]
        totals = [*self._totals]
        totals[place.stage] = sum_stage(chain, chosen, *self._bounds[place.stage])
        self.num_played += 1
        return play_stages(tuple(totals), self._shape, links=self._links)

    def _find_deciding(self, other: PlayedAssignment) -> str:
        """Returns the term that decides; "" for one that costs no more."""
        if not self._fits(other):
            return "memory"
        if other.time_s > self._base.time_s:
            # What crosses stages stays as it is, so that transfers take about as long.
            return largest_rise(self._base.times, other.find_times(self._base.times.transfer_s))
        return "memory" if max(other.peak_bytes) > max(self._base.peak_bytes) else ""
