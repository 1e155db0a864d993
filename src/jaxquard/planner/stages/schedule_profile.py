"""The properties of a schedule that the assignment of segments needs, each found by playing its own order.

A step of M microbatches is estimated as

    fill_weight x (the microbatch times of all stages) + transfer_weight x (the times of all transfers, one way)
        + (1 - stage_weight) x the largest load of an actor + stage_weight x chunks x the largest load of a stage

where a load is (M - 1) x the microbatch time + the time once a step. The first term is the time to fill and to drain
the pipeline, the last ones the busiest actor's. For one stage per actor and whole backwards (GPipe, 1F1B) this is
Alpa's objective: `fill_weight` is 1, and an actor's load is its stage's. Interleaved and V-shaped schedules fill
sooner, and split backwards fill the wait: there `fill_weight` is what makes the estimate exact for equal stages whose
forward, input gradient and weight gradient take the same time. Where an actor has several stages, uneven ones wait for
each other although the actors' sums are equal: `stage_weight` makes the estimate exact where the second half of the
stages takes three times as long as the first. `transfer_weight` is the derivative of the played time by the time of a
transfer: 1F1B waits for transfers in every round, eager 1F1B hides all but the first ones.

Memory is counted, not timed: an activation is kept from its forward to its backward (its weight gradient, if split).
"""

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int

from jaxquard.errors import ScheduleError
from jaxquard.planner.stages.segment_costs import PipelineShape
from jaxquard.schedules.registry import make_schedule
from jaxquard.schedules.schedule import Schedule
from jaxquard.simulate.actor_link import ActorLink
from jaxquard.simulate.play_steps import ActorSteps, play_steps
from jaxquard.simulate.stage_cost import StageCost
from jaxquard.simulate.task_order import BACKWARD, FORWARD, WEIGHT_GRADIENT, TaskOrder, order_tasks
from jaxquard.simulate.task_values import messages_of, value_ends, values_of

# The name of the schedule of one actor: forward and backward of each microbatch in turn.
NO_SCHEDULE = "none"
# Longer steps repeat the same round: of so many rounds of the actors, one is played.
_MAX_ROUNDS = 3
_UNIT = StageCost(forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0)
_TASK_SHARES = np.asarray([1.0, 2.0, 1.0, 1.0]) / 3
_SHORT_TRANSFER_S = 2.0**-10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScheduleProfile:
    """A schedule with a number of microbatches, as the assignment of segments sees it.

    Attributes:
        num_chunks: the largest number of stages on one actor.
        actor_of: the actor of each stage.
        fill_weight: of the sum of all stages' microbatch times.
        stage_weight: of the largest load of a stage, over that of an actor: from 0 to 1.
        kept: rows of numbers of activations of each stage that one actor keeps at the same time; only rows that no
            other exceeds.
        kept_actors: the actor of each row.
        find_transfer_weight: plays the schedule with transfers, which bounds do not look at.
    """

    num_actors: int
    num_stages: int
    num_microbatches: int
    num_chunks: int
    actor_of: tuple[int, ...]
    fill_weight: float
    stage_weight: float
    kept: Int[np.ndarray, "rows stages"]
    kept_actors: Int[np.ndarray, " rows"]
    find_transfer_weight: Callable[[], float] = field(repr=False)

    @property
    def transfer_weight(self) -> float:
        """The weight of the sum over stages of the time of a transfer into it from another actor."""
        return self.find_transfer_weight()

    @property
    def most_kept(self) -> Int[np.ndarray, " stages"]:
        """For each stage, the largest number of its activations that are kept at the same time."""
        return self.kept.max(axis=0)


def find_order(shape: PipelineShape) -> Schedule:
    """Returns the schedule of a shape; of one actor, that which runs a backward after each forward.

    Raises:
        ScheduleError: if the schedule does not exist, or not for so many stages and actors.
    """
    if shape.schedule != NO_SCHEDULE:
        return make_schedule(shape.schedule, num_stages=shape.num_stages, num_actors=shape.num_actors)
    if shape.num_stages != 1:
        raise ScheduleError(
            f"{shape.num_stages} stages need a schedule, but the shape has {NO_SCHEDULE!r}. Use one stage, or 1f1b."
        )
    return make_schedule("1f1b", num_stages=1)


@functools.lru_cache(maxsize=4096)
def profile_schedule(shape: PipelineShape) -> ScheduleProfile:
    """Returns the profile of a schedule.

    Raises:
        ScheduleError: if the schedule does not exist, or not for so many stages and actors.
    """
    schedule, num_microbatches = find_order(shape), shape.num_microbatches
    num_actors = schedule.num_actors
    num_left_out = max(0, num_microbatches // num_actors - (_MAX_ROUNDS - 1)) if num_actors > 1 else 0
    num_played = num_microbatches - num_left_out * num_actors
    fill_weight, stage_weight = _weights_of_rounds(schedule, num_played)
    kept, kept_actors = _kept_of_rounds(schedule, num_played)
    if num_left_out and not np.array_equal(kept, _kept_of_rounds(schedule, num_played + num_actors)[0]):
        # Every round adds to what is kept.
        kept, kept_actors = _kept_of_rounds(schedule, num_microbatches)
    return ScheduleProfile(
        num_actors=num_actors,
        num_stages=schedule.num_stages,
        num_microbatches=num_microbatches,
        num_chunks=max(Counter(_actors_of(schedule)).values()),
        actor_of=_actors_of(schedule),
        fill_weight=fill_weight,
        stage_weight=stage_weight,
        kept=kept,
        kept_actors=kept_actors,
        find_transfer_weight=functools.partial(_transfer_weight, schedule, num_played, num_left_out),
    )


def _transfer_weight(schedule: Schedule, num_played: int, num_left_out: int) -> float:
    """Returns the weight of transfers, from steps of a few rounds."""
    weight = _transfers_of_rounds(schedule, num_played)
    if not num_left_out:
        return weight
    # From one round to the next, a step gets longer by the same time.
    return weight + num_left_out * (_transfers_of_rounds(schedule, num_played + schedule.num_actors) - weight)


def _actors_of(schedule: Schedule) -> tuple[int, ...]:
    return tuple(schedule.actor_of(stage) for stage in range(schedule.num_stages))


@functools.lru_cache(maxsize=4096)
def _weights_of_rounds(schedule: Schedule, num_microbatches: int) -> tuple[float, float]:
    """Returns the weights of fills and of the largest stage."""
    order = order_tasks(schedule, num_microbatches)
    num_stages, num_chunks = order.num_stages, order.num_stages // order.num_actors
    time_s = _play_equal_stages(schedule, num_microbatches)
    fill_weight = (time_s - (num_microbatches - 1) * num_chunks) / num_stages
    stage_weight = 0.0
    if num_chunks > 1 and num_microbatches > 1:
        uneven_s = _play_stages(order, np.repeat([0.5, 1.5], num_stages // 2))
        stage_weight = min(1.0, max(0.0, uneven_s - time_s) / (0.5 * num_chunks * (num_microbatches - 1)))
    return fill_weight, stage_weight


@functools.lru_cache(maxsize=4096)
def _transfers_of_rounds(schedule: Schedule, num_microbatches: int) -> float:
    order = order_tasks(schedule, num_microbatches)
    num_crossings = sum(before != after for before, after in zip(order.actor_of, order.actor_of[1:], strict=False))
    if not num_crossings:
        return 0.0
    added_s = _play_stages(order, np.ones(order.num_stages), _SHORT_TRANSFER_S)
    return (added_s - _play_equal_stages(schedule, num_microbatches)) / _SHORT_TRANSFER_S / num_crossings


@functools.lru_cache(maxsize=4096)
def _play_equal_stages(schedule: Schedule, num_microbatches: int) -> float:
    order = order_tasks(schedule, num_microbatches)
    return _play_stages(order, np.ones(order.num_stages))


def _play_stages(order: TaskOrder, stages_s: np.ndarray, transfer_s: float = 0.0) -> float:
    """Returns the time of a step whose stages take such times for a microbatch, a third in each of F, I and W."""
    sources, targets = value_ends(order)
    link = ActorLink(latency_s=transfer_s)
    links = dict.fromkeys(zip(sources.tolist(), targets.tolist(), strict=True), link)
    values, messages = values_of(order), messages_of(order, [_UNIT] * order.num_stages, links)
    waits, sends, times_s = values.waits(), values.sends(), _TASK_SHARES[order.kinds] * stages_s[order.stages]
    slices = [slice(start, end) for start, end in zip(order.bounds, order.bounds[1:], strict=False)]
    actors = [
        ActorSteps(times_s=times_s[tasks].tolist(), waits=waits[tasks].tolist(), sends=sends[tasks].tolist())
        for tasks in slices
    ]
    played = play_steps(actors, messages)
    assert not played.waiting, "a schedule of ours can run"
    return max(row[-1] + steps.times_s[-1] for row, steps in zip(played.starts_s, actors, strict=True))


@functools.lru_cache(maxsize=4096)
def _kept_of_rounds(schedule: Schedule, num_microbatches: int) -> tuple[np.ndarray, np.ndarray]:
    return _kept_activations(order_tasks(schedule, num_microbatches))


def _kept_activations(order: TaskOrder) -> tuple[np.ndarray, np.ndarray]:
    """Counts the activations that are there while each task runs, and returns the largest counts of each actor."""
    rows, actors = [], []
    for actor, (start, end) in enumerate(zip(order.bounds, order.bounds[1:], strict=False)):
        stages, kinds = order.stages[start:end], order.kinds[start:end]
        own = np.flatnonzero(order.actor_of == actor)
        is_own = stages[:, None] == own
        begun = np.cumsum(is_own & (kinds == FORWARD)[:, None], axis=0)
        is_release = (kinds == BACKWARD) | (kinds == WEIGHT_GRADIENT)
        released = np.cumsum(is_own & is_release[:, None], axis=0)
        # The task that releases an activation still has it.
        released = np.vstack([np.zeros((1, len(own)), dtype=released.dtype), released[:-1]])
        # There are the most where a release comes next, and after the last task.
        is_peak = np.append(is_release[:-1], True)
        is_peak[1:] &= ~is_release[:-1]
        for counts in _largest_rows((begun - released)[is_peak]):
            row = np.zeros(order.num_stages, dtype=np.int64)
            row[own] = counts
            rows.append(row)
            actors.append(actor)
    return np.asarray(rows), np.asarray(actors)


def _largest_rows(counts: np.ndarray) -> np.ndarray:
    """Returns the rows that no other row exceeds in all columns."""
    if counts.shape[1] == 1:
        return counts.max(axis=0, keepdims=True)
    # For rows of a few numbers this is quicker than `np.unique`.
    unique = np.asarray(sorted(set(map(tuple, counts.tolist()))))
    is_exceeded = (unique[None] >= unique[:, None]).all(axis=2).sum(axis=1) > 1
    return unique[~is_exceeded]
