"""The tasks of a schedule as numbers, actor by actor, so that a hundred thousand of them play in a moment.

A schedule that is a pattern is read as such, without a `Task` for each task. A task is a number:

    (kind * num_stages + stage) * num_microbatches + microbatch        kind: F 0, B 1, I 2, W 3

Rows that cannot run are refused with the message of `check_rows`.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from jaxquard.errors import ScheduleError
from jaxquard.ir.task import Phase, Task
from jaxquard.schedules.check import check_rows
from jaxquard.schedules.dependences import count_stages
from jaxquard.schedules.patterns.pattern import PatternSchedule, StagePhase
from jaxquard.schedules.registry import SCHEDULES
from jaxquard.schedules.schedule import Rows, Schedule, require_count

FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = range(4)
PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskOrder:
    """The tasks of all actors, one actor after the other, each in its order.

    Attributes:
        bounds: where the tasks of each actor begin, and at last where they end.
        actor_of: the actor of each stage.
    """

    num_stages: int
    num_microbatches: int
    bounds: tuple[int, ...]
    kinds: np.ndarray
    stages: np.ndarray
    microbatches: np.ndarray
    actor_of: np.ndarray

    @property
    def num_actors(self) -> int:
        return len(self.bounds) - 1

    @property
    def actors(self) -> np.ndarray:
        """The actor of each task."""
        return np.repeat(np.arange(self.num_actors), np.diff(self.bounds))

    def task(self, position: int) -> Task:
        """The task at a position."""
        return Task(
            stage=int(self.stages[position]),
            phase=PHASES[self.kinds[position]],
            microbatch=int(self.microbatches[position]),
        )

    def rows(self) -> Rows:
        """The same as rows of tasks."""
        return tuple(
            tuple(self.task(position) for position in range(start, end))
            for start, end in zip(self.bounds, self.bounds[1:], strict=False)
        )


def order_tasks(schedule: Schedule | Rows, num_microbatches: int | None = None) -> TaskOrder:
    """Reads the order of a schedule, or of rows.

    Args:
        num_microbatches: of a schedule; rows have their own.

    Raises:
        ScheduleError: if the rows cannot run, or a schedule comes without a number of microbatches.
    """
    if not isinstance(schedule, Schedule):
        rows = schedule
        num_stages = count_stages(rows)
        num_microbatches = 1 + max((task.microbatch for row in rows for task in row), default=-1)
        check_rows(rows, num_stages=num_stages, num_microbatches=num_microbatches)
        return _number_rows(rows, num_stages, num_microbatches)
    if num_microbatches is None:
        raise ScheduleError(f"{schedule!r} needs num_microbatches to be played, but got none. Give a whole number.")
    require_count(schedule, num_microbatches=num_microbatches)
    if not isinstance(schedule, PatternSchedule):
        return order_tasks(schedule.rows(num_microbatches))
    # Schedules of others may have more than what they are compared by.
    known = type(schedule) in SCHEDULES.values()
    return _known_order(schedule, num_microbatches) if known else _order_pattern(schedule, num_microbatches)


@functools.lru_cache(maxsize=32)
def _known_order(schedule: PatternSchedule, num_microbatches: int) -> TaskOrder:
    return _order_pattern(schedule, num_microbatches)


def _order_pattern(schedule: PatternSchedule, num_microbatches: int) -> TaskOrder:
    defined_for = schedule.round_up(num_microbatches)
    rows = [
        _number_pattern(schedule.pattern(actor, defined_for), schedule.num_stages, defined_for)
        for actor in range(schedule.num_actors)
    ]
    return _split(rows, schedule.num_stages, defined_for, num_microbatches)


def _number_pattern(steps: Iterable[StagePhase], num_stages: int, num_microbatches: int) -> list[int]:
    """Numbers one actor's steps; `B` counts as `I` and as `W`, as `number_microbatches` has it."""
    forward, backward, input_gradient = Phase.FORWARD, Phase.BACKWARD, Phase.INPUT_GRADIENT
    forwards, gradients, weights = [0] * num_stages, [0] * num_stages, [0] * num_stages
    tasks = []
    add = tasks.append
    # Branches by identity: an enum's hash runs in Python.
    for stage, phase in steps:
        if phase is forward:
            add(stage * num_microbatches + forwards[stage])
            forwards[stage] += 1
        elif phase is backward:
            add((num_stages + stage) * num_microbatches + gradients[stage])
            gradients[stage] += 1
            weights[stage] += 1
        elif phase is input_gradient:
            add((2 * num_stages + stage) * num_microbatches + gradients[stage])
            gradients[stage] += 1
        else:
            add((3 * num_stages + stage) * num_microbatches + weights[stage])
            weights[stage] += 1
    return tasks


def _number_rows(rows: Rows, num_stages: int, num_microbatches: int) -> TaskOrder:
    kinds = {phase.value: kind for kind, phase in enumerate(PHASES)}
    numbers = [
        [(kinds[task.phase.value] * num_stages + task.stage) * num_microbatches + task.microbatch for task in row]
        for row in rows
    ]
    return _split(numbers, num_stages, num_microbatches, num_microbatches)


def _split(rows: list[list[int]], num_stages: int, defined_for: int, num_microbatches: int) -> TaskOrder:
    """Splits numbers into kind, stage and microbatch; leaves out microbatches that a pattern has too many."""
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    arrays = [array[array % defined_for < num_microbatches] for array in arrays]
    numbers = np.concatenate(arrays)
    kinds, rest = np.divmod(numbers, num_stages * defined_for)
    stages, microbatches = np.divmod(rest, defined_for)
    bounds = tuple(int(bound) for bound in np.cumsum([0, *map(len, arrays)]))
    actor_of = np.zeros(num_stages, dtype=np.int64)
    actor_of[stages] = np.repeat(np.arange(len(arrays)), list(map(len, arrays)))
    return TaskOrder(
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        bounds=bounds,
        kinds=kinds,
        stages=stages,
        microbatches=microbatches,
        actor_of=actor_of,
    )
