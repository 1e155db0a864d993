"""Plays an assignment of segments to stages on a cluster: the seconds and bytes of a step, by what they go to."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxquard.planner.record.plan import MemoryTerms, TimeTerms
from jaxquard.planner.stages.assign import memory_terms
from jaxquard.planner.stages.schedule_profile import profile_schedule
from jaxquard.planner.stages.segment_costs import PipelineShape, SegmentCost, SegmentCosts, StageAssignment
from jaxquard.schedules.registry import make_schedule
from jaxquard.simulate.actor_link import NO_LINKS, ActorLinks
from jaxquard.simulate.play_pipeline import play_pipeline
from jaxquard.simulate.stage_cost import StageCost

# Of a reshard between two segments, the part that the forward has.
_FORWARD_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSum:
    """The costs of a stage: of its segments, and of the reshards between them.

    Attributes:
        reshard_s: of one microbatch, forward and backward.
        input_bytes: that enter it from the stage before.
    """

    segments: tuple[SegmentCost, ...] = field(repr=False)
    reshard_s: float
    input_bytes: int

    def total(self, name: str) -> float:
        """Returns the sum of one field over the segments."""
        return sum(getattr(segment, name) for segment in self.segments)

    @property
    def forward_s(self) -> float:
        """Seconds of the forward of one microbatch."""
        return self.total("forward_s") + _FORWARD_SHARE * self.reshard_s

    @property
    def backward_s(self) -> float:
        """Seconds of the backward of one microbatch, recomputation included."""
        return self.input_gradient_s + self.total("weight_gradient_s")

    @property
    def input_gradient_s(self) -> float:
        """Seconds of the input gradient of one microbatch, recomputation included."""
        own_s = self.total("recompute_s") + self.total("input_gradient_s")
        return own_s + (1 - _FORWARD_SHARE) * self.reshard_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStages:
    """An assignment that was played.

    Attributes:
        memory: of every actor.
    """

    assignment: StageAssignment
    stages: tuple[StageSum, ...] = field(repr=False)
    times: TimeTerms
    memory: tuple[MemoryTerms, ...]

    @property
    def time_s(self) -> float:
        """Seconds of the step."""
        return self.times.total_s

    @property
    def fullest(self) -> MemoryTerms:
        """The memory of the fullest actor."""
        return max(self.memory, key=lambda terms: terms.total_bytes)


def play_stages(
    chain: Sequence[SegmentCosts], shape: PipelineShape, assignment: StageAssignment, *, links: ActorLinks
) -> PlayedStages:
    """Plays an assignment."""
    profile = profile_schedule(shape)
    stages = sum_stages(chain, assignment)
    time_s, instant_s = (_step_time_s(shape, stages, found) for found in (links, NO_LINKS))
    actors = [
        [stage for stage, of in zip(stages, profile.actor_of, strict=True) if of == actor]
        for actor in set(profile.actor_of)
    ]
    busiest = max(actors, key=lambda own: _busy_s(own, shape.num_microbatches))
    count = shape.num_microbatches

    def total(name: str) -> float:
        return sum(stage.total(name) for stage in busiest)

    collective_s = count * (total("communication_s") + sum(stage.reshard_s for stage in busiest))
    known_s = _busy_s(busiest, count)
    gradient_s = total("gradient_sum_s")
    recompute_s = count * total("recompute_s")
    optimizer_s = total("step_s") - gradient_s
    transfer_s = max(0.0, time_s - instant_s)
    times = TimeTerms(
        compute_s=max(0.0, known_s - collective_s - recompute_s - gradient_s - optimizer_s),
        recompute_s=recompute_s,
        collective_s=collective_s,
        transfer_s=transfer_s,
        bubble_s=max(0.0, time_s - transfer_s - known_s),
        gradient_s=gradient_s,
        optimizer_s=optimizer_s,
    )
    return PlayedStages(
        assignment=assignment, stages=stages, times=times, memory=memory_terms(chain, assignment, profile)
    )


def sum_stages(chain: Sequence[SegmentCosts], assignment: StageAssignment) -> tuple[StageSum, ...]:
    """Returns the costs of every stage of an assignment."""
    costs = [segment.strategies[place] for segment, place in zip(chain, assignment.strategies, strict=True)]
    found, start = [], 0
    for stop in assignment.stops:
        reshard_s = 0.0
        for place in range(start + 1, stop):
            reshards_s = chain[place].reshards_s
            if reshards_s is not None:
                reshard_s += float(reshards_s[costs[place - 1].exit, costs[place].entry])
        found.append(
            StageSum(
                segments=tuple(costs[start:stop]),
                reshard_s=reshard_s,
                input_bytes=chain[start].input_bytes if start else 0,
            )
        )
        start = stop
    return tuple(found)


def _busy_s(stages: Sequence[StageSum], count: int) -> float:
    return sum(count * (stage.forward_s + stage.backward_s) + stage.total("step_s") for stage in stages)


def _step_time_s(shape: PipelineShape, stages: Sequence[StageSum], links: ActorLinks) -> float:
    if shape.num_stages == 1:
        return _busy_s(stages, shape.num_microbatches)
    costs = [
        StageCost(
            forward_s=stage.forward_s,
            input_gradient_s=stage.input_gradient_s,
            weight_gradient_s=stage.total("weight_gradient_s"),
            output_bytes=following.input_bytes if following is not None else 0,
            gradient_sum_s=stage.total("gradient_sum_s"),
            update_s=max(0.0, stage.total("step_s") - stage.total("gradient_sum_s")),
        )
        for stage, following in zip(stages, [*stages[1:], None], strict=True)
    ]
    schedule = make_schedule(shape.schedule, num_stages=shape.num_stages, num_actors=shape.num_actors)
    return play_pipeline(schedule, costs, num_microbatches=shape.num_microbatches, links=links).step_time_s
