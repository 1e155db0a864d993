"""Plays an assignment of segments on a cluster's links: its step time and memory, by what they go to."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jaxquard.planner.record.plan import MemoryTerms, TimeTerms
from jaxquard.planner.stages.schedule_profile import find_order
from jaxquard.planner.stages.segment_costs import PipelineShape, SegmentCost, SegmentCosts, StageAssignment
from jaxquard.simulate.actor_link import NO_LINKS, ActorLinks
from jaxquard.simulate.actor_memory import ACTIVATIONS, TRANSFERS, WORKING
from jaxquard.simulate.pipeline_playback import PipelinePlayback
from jaxquard.simulate.play_pipeline import play_pipeline
from jaxquard.simulate.stage_cost import StageCost
from jaxquard.simulate.task_order import order_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTotals:
    """The sums of a stage's segments, of one device.

    Attributes:
        reshards_s: between its segments, of one microbatch, forward and backward together.
        communication_s: the part of one microbatch's times in exposed collectives, reshards among them.
    """

    forward_s: float
    recompute_s: float
    input_gradient_s: float
    weight_gradient_s: float
    reshards_s: float
    communication_s: float
    gradient_sum_s: float
    update_s: float
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    working_bytes: int
    output_bytes: int

    @property
    def microbatch_s(self) -> float:
        """The seconds of one microbatch, forward and backward."""
        return self.forward_s + self.recompute_s + self.input_gradient_s + self.weight_gradient_s + self.reshards_s

    @property
    def step_s(self) -> float:
        """The seconds once a step."""
        return self.gradient_sum_s + self.update_s

    def cost(self) -> StageCost:
        """Returns the same as the simulator takes it: reshards half in the forward, recomputation in the backward."""
        return StageCost(
            forward_s=self.forward_s + self.reshards_s / 2,
            input_gradient_s=self.recompute_s + self.input_gradient_s + self.reshards_s / 2,
            weight_gradient_s=self.weight_gradient_s,
            output_bytes=self.output_bytes,
            weight_bytes=self.weight_bytes + self.optimizer_bytes,
            gradient_bytes=self.gradient_bytes,
            activation_bytes=self.activation_bytes,
            forward_working_bytes=self.working_bytes,
            backward_working_bytes=self.working_bytes,
            gradient_sum_s=self.gradient_sum_s,
            update_s=self.update_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedAssignment:
    """An assignment as it plays.

    Attributes:
        time_s: of the step.
        bubble: the share of the loop in which actors run no task.
        peak_bytes: of each actor.
        memory: of the fullest actor, by what it holds at its peak.
        stages: the sums of each stage.
        actor_of: the actor of each stage.
        busiest_actor: the one that computes longest.
        find_times: returns what its time goes to; plays the step again without transfers, unless their time is given.
    """

    time_s: float
    bubble: float
    peak_bytes: tuple[int, ...]
    memory: MemoryTerms
    stages: tuple[StageTotals, ...] = field(repr=False)
    actor_of: tuple[int, ...]
    busiest_actor: int
    find_times: Callable[[float | None], TimeTerms] = field(repr=False)

    @property
    def times(self) -> TimeTerms:
        """The time of the step by what it goes to; of the busiest actor."""
        return self.find_times(None)

    def stage_memory(self, stage: int, num_kept: int = 1) -> MemoryTerms:
        """Returns the memory of one stage alone, with the activations of so many microbatches."""
        totals = self.stages[stage]
        return MemoryTerms(
            weight_bytes=totals.weight_bytes,
            gradient_bytes=totals.gradient_bytes,
            optimizer_bytes=totals.optimizer_bytes,
            activation_bytes=totals.activation_bytes * num_kept,
            working_bytes=totals.working_bytes,
        )


def sum_stages(chain: Sequence[SegmentCosts], assignment: StageAssignment) -> tuple[StageTotals, ...]:
    """Adds up the costs of each stage's segments, and the reshards between them."""
    chosen = [segment.strategies[place] for segment, place in zip(chain, assignment.strategies, strict=True)]
    starts = (0, *assignment.stops[:-1])
    return tuple(sum_stage(chain, chosen, start, stop) for start, stop in zip(starts, assignment.stops, strict=True))


def sum_stage(chain: Sequence[SegmentCosts], chosen: Sequence[SegmentCost], start: int, stop: int) -> StageTotals:
    """Adds up the costs of one stage's segments, from the first to the one before `stop`.

    Args:
        chosen: the cost of every segment of the chain.
    """
    costs = chosen[start:stop]
    reshards_s = 0.0
    for place in range(start + 1, stop):
        table = chain[place].reshards_s
        if table is not None:
            reshards_s += float(table[chosen[place - 1].exit, chosen[place].entry])
    gradient_sum_s = sum(cost.gradient_sum_s for cost in costs)
    return StageTotals(
        forward_s=sum(cost.forward_s for cost in costs),
        recompute_s=sum(cost.recompute_s for cost in costs),
        input_gradient_s=sum(cost.input_gradient_s for cost in costs),
        weight_gradient_s=sum(cost.weight_gradient_s for cost in costs),
        reshards_s=reshards_s,
        communication_s=reshards_s + sum(cost.communication_s for cost in costs),
        gradient_sum_s=gradient_sum_s,
        update_s=max(0.0, sum(cost.step_s for cost in costs) - gradient_sum_s),
        weight_bytes=sum(cost.weight_bytes for cost in costs),
        gradient_bytes=sum(cost.gradient_bytes for cost in costs),
        optimizer_bytes=sum(cost.optimizer_bytes for cost in costs),
        activation_bytes=sum(cost.activation_bytes for cost in costs),
        working_bytes=max(cost.working_bytes for cost in costs),
        output_bytes=chain[stop].input_bytes if stop < len(chain) else 0,
    )


def play_assignment(
    chain: Sequence[SegmentCosts], shape: PipelineShape, assignment: StageAssignment, *, links: ActorLinks = NO_LINKS
) -> PlayedAssignment:
    """Plays the schedule with the costs of the assignment's stages.

    Args:
        links: between actors (`simulate.link_actors`); a pair that is not in it transfers in no time.
    """
    return play_stages(sum_stages(chain, assignment), shape, links=links)


def play_stages(
    stages: tuple[StageTotals, ...], shape: PipelineShape, *, links: ActorLinks = NO_LINKS
) -> PlayedAssignment:
    """Plays the schedule with the costs of stages, as `play_assignment` does."""
    costs = [stage.cost() for stage in stages]
    order = find_order(shape)
    playback = play_pipeline(order, costs, num_microbatches=shape.num_microbatches, links=links)
    actor_of = tuple(order_tasks(order, shape.num_microbatches).actor_of.tolist())
    own = [[stage for stage, of in zip(stages, actor_of, strict=True) if of == actor] for actor in set(actor_of)]
    loads_s = [_load_s(actor_stages, shape.num_microbatches) for actor_stages in own]
    busiest = loads_s.index(max(loads_s))

    @functools.cache
    def find_times(transfer_s: float | None) -> TimeTerms:
        apart_s = playback.step_time_s - (transfer_s or 0.0)
        if transfer_s is None and len(links):
            apart_s = play_pipeline(order, costs, num_microbatches=shape.num_microbatches).step_time_s
        return _time_terms(own[busiest], shape.num_microbatches, playback.step_time_s, apart_s)

    peaks_bytes = playback.peaks_bytes
    fullest = peaks_bytes.index(max(peaks_bytes))
    return PlayedAssignment(
        time_s=playback.step_time_s,
        bubble=playback.bubble,
        peak_bytes=peaks_bytes,
        memory=_memory_terms(playback, fullest, own[fullest]),
        stages=stages,
        actor_of=actor_of,
        busiest_actor=busiest,
        find_times=find_times,
    )


def _load_s(stages: Sequence[StageTotals], num_microbatches: int) -> float:
    return sum(num_microbatches * stage.microbatch_s + stage.step_s for stage in stages)


def _time_terms(stages: Sequence[StageTotals], num_microbatches: int, time_s: float, apart_s: float) -> TimeTerms:
    """Divides the step into the busiest actor's work and its waits.

    Args:
        stages: of the busiest actor.
        apart_s: the time of the step if transfers took none.
    """
    collective_s = num_microbatches * sum(stage.communication_s for stage in stages)
    recompute_s = num_microbatches * sum(stage.recompute_s for stage in stages)
    working_s = num_microbatches * sum(stage.microbatch_s for stage in stages)
    gradient_s = sum(stage.gradient_sum_s for stage in stages)
    optimizer_s = sum(stage.update_s for stage in stages)
    transfer_s = max(0.0, time_s - apart_s)
    return TimeTerms(
        compute_s=working_s - collective_s - recompute_s,
        recompute_s=recompute_s,
        collective_s=collective_s,
        transfer_s=transfer_s,
        bubble_s=max(0.0, time_s - transfer_s - working_s - gradient_s - optimizer_s),
        gradient_s=gradient_s,
        optimizer_s=optimizer_s,
    )


def _memory_terms(playback: PipelinePlayback, actor: int, stages: Sequence[StageTotals]) -> MemoryTerms:
    parts = playback.memory[actor].peak_parts()
    return MemoryTerms(
        weight_bytes=sum(stage.weight_bytes for stage in stages),
        gradient_bytes=sum(stage.gradient_bytes for stage in stages),
        optimizer_bytes=sum(stage.optimizer_bytes for stage in stages),
        activation_bytes=parts[ACTIVATIONS],
        working_bytes=parts[WORKING] + parts[TRANSFERS],
    )
