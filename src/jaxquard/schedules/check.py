"""Checks that rows of tasks can run: every rule of a schedule, and a message for each breach.

The rules, in the order in which they are checked:

1. every task is of a stage and a microbatch that exist, and runs once;
2. all tasks of a stage run on one actor, where its weights are;
3. every stage and microbatch has its F, and then B, or both I and W; only if there is no
   backward at all may backwards be left out (inference);
4. an actor does not run a task before one that it needs from itself;
5. the actors do not wait for each other in a circle.

Messages are one line and name the tasks, so that they can be found in a CSV.
"""

from collections.abc import Iterator

from jaxquard.errors import ScheduleError
from jaxquard.ir.task import Phase, Task
from jaxquard.schedules.dependences import made_by, needs_of
from jaxquard.schedules.run_order import run_order
from jaxquard.schedules.schedule import Rows


def check_rows(rows: Rows, *, num_stages: int, num_microbatches: int) -> None:
    """Refuses rows that leave something out, do it twice, or cannot run in their order.

    Args:
        rows: a row of tasks for each actor.
        num_stages: number of stages that the rows must cover.
        num_microbatches: number of microbatches that each stage must run.

    Raises:
        ScheduleError: with the first rule that is broken and the tasks that break it.

    Example:
        >>> rows = jq.schedules.GPipe(2).rows(num_microbatches=4)
        >>> jq.schedules.check_rows(rows, num_stages=2, num_microbatches=4)
        >>> jq.schedules.check_rows(rows[:1], num_stages=2, num_microbatches=4)
        Traceback (most recent call last):
        jaxquard.errors.ScheduleError: no actor runs stage 1 of 2; add its tasks, from 1F0 on, to an actor
    """
    _check_range(rows, num_stages=num_stages, num_microbatches=num_microbatches)
    _check_once(rows)
    actor_of = _check_placement(rows, num_stages=num_stages)
    _check_complete(rows, actor_of=actor_of, num_microbatches=num_microbatches)
    _check_own_order(rows, num_stages=num_stages)
    run_order(rows)


def _tasks(rows: Rows) -> Iterator[tuple[int, Task]]:
    return ((actor, task) for actor, row in enumerate(rows) for task in row)


def _check_range(rows: Rows, *, num_stages: int, num_microbatches: int) -> None:
    for actor, task in _tasks(rows):
        for position, count, what in (
            (task.stage, num_stages, "stage"),
            (task.microbatch, num_microbatches, "microbatch"),
        ):
            if position >= count:
                raise ScheduleError(
                    f"actor {actor} runs {task}, but the last {what} is {count - 1}; take {task} out, or use "
                    f"at least {position + 1} {what}{'es' if what == 'microbatch' else 's'}"
                )


def _check_once(rows: Rows) -> None:
    first: dict[Task, int] = {}
    for actor, task in _tasks(rows):
        if task in first and first[task] == actor:
            raise ScheduleError(f"actor {actor} runs {task} twice; keep one")
        if task in first:
            raise ScheduleError(f"{task} runs on actor {first[task]} and again on actor {actor}; keep one")
        first[task] = actor


def _check_placement(rows: Rows, *, num_stages: int) -> dict[int, int]:
    first: dict[int, tuple[int, Task]] = {}
    for actor, task in _tasks(rows):
        home, other = first.setdefault(task.stage, (actor, task))
        if actor != home:
            raise ScheduleError(
                f"actor {actor} runs {task}, but actor {home} runs {other}; put all tasks of stage "
                f"{task.stage} on one actor"
            )
    for stage in range(num_stages):
        if stage not in first:
            raise ScheduleError(
                f"no actor runs stage {stage} of {num_stages}; add its tasks, from {stage}F0 on, to an actor"
            )
    return {stage: actor for stage, (actor, _) in first.items()}


def _check_complete(rows: Rows, *, actor_of: dict[int, int], num_microbatches: int) -> None:
    present = {task for _, task in _tasks(rows)}
    forward_only = all(task.phase is Phase.FORWARD for task in present)
    for stage, actor in sorted(actor_of.items()):
        for microbatch in range(num_microbatches):
            breach = _find_gap(present, stage, microbatch, forward_only=forward_only)
            if breach is not None:
                raise ScheduleError(breach.format(actor=f"actor {actor}"))


def _find_gap(present: set[Task], stage: int, microbatch: int, *, forward_only: bool) -> str | None:
    forward, whole, of_input, of_weight = (
        Task(stage=stage, phase=phase, microbatch=microbatch)
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)
    )
    if forward not in present:
        return f"{forward} is missing; add it to {{actor}}"
    if forward_only:
        return None
    parts = [part for part in (of_input, of_weight) if part in present]
    if whole in present:
        if parts:
            return f"{{actor}} runs both {whole} and {parts[0]}; keep {whole}, or {of_input} with {of_weight}"
        return None
    if not parts:
        return f"{forward} has no backward; add {whole}, or {of_input} and {of_weight}, to {{actor}}"
    if of_weight not in present:
        return f"{of_input} has no {of_weight}; add {of_weight} after it on {{actor}}, or run {whole} instead"
    if of_input not in present:
        return f"{of_weight} has no {of_input}; add {of_input} before it on {{actor}}, or run {whole} instead"
    return None


def _check_own_order(rows: Rows, *, num_stages: int) -> None:
    for actor, row in enumerate(rows):
        makers = {made_by(task): task for task in row}
        made = set()
        for task in row:
            for value in needs_of(task, num_stages=num_stages):
                if value in makers and value not in made:
                    needed = makers[value]
                    raise ScheduleError(f"actor {actor} runs {task} before {needed}; put {needed} first")
            made.add(made_by(task))
