"""Plays a schedule with the costs of its stages on a cluster: times, bubbles, memory and a timeline (JaxPP, section 5).

Around the loop of tasks an actor gathers weights (before its first task), sums the gradients of each of its stages over
the data-parallel replicas (after its last task, or, if these sums overlap, beside the tasks that are left when the
stage's last one has ended), and updates its weights. All replicas do the same at the same time, so that one of them is
played, however many there are.
"""

import functools
from collections.abc import Sequence

import numpy as np

from jaxquard.errors import ScheduleError
from jaxquard.ir.timeline import Span, Track
from jaxquard.schedules.run_order import run_order
from jaxquard.schedules.schedule import Rows, Schedule
from jaxquard.simulate.actor_link import NO_LINKS, ActorLinks
from jaxquard.simulate.pipeline_playback import PipelinePlayback, PlayedTransfers
from jaxquard.simulate.play_steps import NO_MESSAGE, ActorSteps, Messages, PlayedSteps, play_steps
from jaxquard.simulate.stage_cost import StageCost
from jaxquard.simulate.task_memory import memory_of_tasks
from jaxquard.simulate.task_order import TaskOrder, order_tasks
from jaxquard.simulate.task_values import TaskValues, messages_of, value_ends, value_sizes, values_of


def play_pipeline(
    schedule: Schedule | Rows,
    costs: Sequence[StageCost],
    *,
    num_microbatches: int | None = None,
    links: ActorLinks = NO_LINKS,
    synchronous_sends: bool = False,
    overlap_gradient_sums: bool = False,
) -> PipelinePlayback:
    """Plays a schedule, or rows of tasks.

    Args:
        costs: one for each stage.
        num_microbatches: of a schedule; rows have their own.
        links: between actors (`link_actors`); a pair that is not in it transfers in no time.
        synchronous_sends: actors compute nothing while they send or receive.
        overlap_gradient_sums: gradients of a stage are summed while the actor still computes others.

    Raises:
        ScheduleError: if the rows cannot run, or there is not one cost for each stage.

    Example:
        >>> cost = jq.simulate.StageCost(forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0)
        >>> playback = jq.simulate.play_pipeline(jq.schedules.OneFOneB(4), [cost] * 4, num_microbatches=8)
        >>> playback.step_time_s, round(playback.bubble, 3)
        (33.0, 0.273)
    """
    order, costs = order_tasks(schedule, num_microbatches), tuple(costs)
    if len(costs) != order.num_stages:
        raise ScheduleError(
            f"the schedule has {order.num_stages} stages, but there are costs of {len(costs)}. Give one for each stage."
        )
    values, messages, times_s = values_of(order), messages_of(order, costs, links), _task_times(order, costs)
    actors = _actor_steps(order, costs, values, times_s)
    played = play_steps(actors, messages, is_synchronous=synchronous_sends)
    if played.waiting:
        run_order(order.rows())
        raise AssertionError("the rows can run, but the player waits")
    # The first step of an actor is its gather.
    starts_s = np.concatenate([np.asarray(starts_s[1:]) for starts_s in played.starts_s])
    ends_s = starts_s + times_s
    outside = _outside(order, costs, ends_s, is_overlapped=overlap_gradient_sums)
    return PipelinePlayback(
        bounds=order.bounds,
        starts_s=starts_s,
        ends_s=ends_s,
        task_name=lambda position: str(order.task(position)),
        outside=outside,
        step_time_s=max([float(ends_s.max(initial=0.0)), *(span.end_s for span in outside)]),
        find_transfers=functools.partial(_transfers, order, costs, values, messages, played),
        find_memory=functools.cache(
            functools.partial(memory_of_tasks, order, costs, values, played, starts_s=starts_s, ends_s=ends_s)
        ),
    )


def _task_times(order: TaskOrder, costs: Sequence[StageCost]) -> np.ndarray:
    """Returns the seconds of each task; the rows of the table are the kinds of tasks."""
    table = np.asarray(
        [
            [cost.forward_s for cost in costs],
            [cost.backward_s for cost in costs],
            [cost.input_gradient_s for cost in costs],
            [cost.weight_gradient_s for cost in costs],
        ]
    )
    return table[order.kinds, order.stages]


def _actor_steps(
    order: TaskOrder, costs: Sequence[StageCost], values: TaskValues, times_s: np.ndarray
) -> list[ActorSteps]:
    """Returns a gather and the tasks of each actor."""
    return [
        ActorSteps(times_s=[_gather_s(order, costs, actor), *times_s[start:end].tolist()], waits=waits, sends=sends)
        for actor, (start, end, (waits, sends)) in enumerate(
            zip(order.bounds, order.bounds[1:], _list_messages(order, values), strict=False)
        )
    ]


@functools.lru_cache(maxsize=8)
def _list_messages(order: TaskOrder, values: TaskValues) -> list[tuple[list[int], list[int]]]:
    """Returns the messages that a gather and the tasks of each actor wait for, and those that they send."""
    waits, sends = values.waits(), values.sends()
    return [
        ([NO_MESSAGE, *waits[start:end].tolist()], [NO_MESSAGE, *sends[start:end].tolist()])
        for start, end in zip(order.bounds, order.bounds[1:], strict=False)
    ]


def _stages_of(order: TaskOrder, actor: int) -> list[int]:
    return [stage for stage in range(order.num_stages) if order.actor_of[stage] == actor]


def _gather_s(order: TaskOrder, costs: Sequence[StageCost], actor: int) -> float:
    return float(sum(costs[stage].gather_s for stage in _stages_of(order, actor)))


def _transfers(
    order: TaskOrder, costs: Sequence[StageCost], values: TaskValues, messages: Messages, played: PlayedSteps
) -> PlayedTransfers:
    times_s = np.asarray(messages.times_s)
    sent = np.flatnonzero(values.crosses & (values.maker >= 0) & (times_s > 0))
    starts_s = np.asarray(played.sent_s)[sent]
    sources, targets = value_ends(order)
    return PlayedTransfers(
        tasks=values.maker[sent],
        sources=sources[sent // order.num_microbatches],
        targets=targets[sent // order.num_microbatches],
        starts_s=starts_s,
        ends_s=starts_s + times_s[sent],
        sizes_bytes=value_sizes(costs)[sent // order.num_microbatches],
    )


def _outside(
    order: TaskOrder, costs: Sequence[StageCost], ends_s: np.ndarray, *, is_overlapped: bool
) -> tuple[Span, ...]:
    """Returns the spans before and after the loop, of those that take time."""
    last_s = np.zeros(order.num_stages)
    np.maximum.at(last_s, order.stages, ends_s)
    spans = []
    for actor in range(order.num_actors):
        stages = _stages_of(order, actor)
        gather_s = _gather_s(order, costs, actor)
        spans.append(_span(actor, Track.TRANSFER, "gather weights", 0.0, gather_s))
        loop_end_s = free_s = max((float(last_s[stage]) for stage in stages), default=gather_s)
        if is_overlapped:
            free_s = 0.0
        for stage in sorted(stages, key=lambda stage: (last_s[stage], stage)):
            start_s = max(free_s, float(last_s[stage]))
            free_s = start_s + costs[stage].gradient_sum_s
            spans.append(_span(actor, Track.TRANSFER, f"sum gradients of stage {stage}", start_s, free_s))
        start_s = max(free_s, loop_end_s)
        update_s = sum(costs[stage].update_s for stage in stages)
        spans.append(_span(actor, Track.COMPUTE, "update", start_s, start_s + update_s))
    return tuple(span for span in spans if span.time_s > 0)


def _span(actor: int, track: Track, name: str, start_s: float, end_s: float) -> Span:
    return Span(actor=actor, track=track, name=name, start_s=start_s, end_s=end_s)
