"""One order in which all tasks of all actors can run, if there is one.

Each actor runs its row in order and waits at a task whose values are not there yet. Which actor
moves first makes no difference to what can run, so a single pass decides whether the rows finish
or lock: an actor that waits is taken up again when its value is made, and each task is looked at
once per value it waits for.
"""

from dataclasses import dataclass

from jaxquard.errors import ScheduleError
from jaxquard.ir.task import Task
from jaxquard.schedules.dependences import Value, count_stages, depends_on, made_by, needs_of
from jaxquard.schedules.schedule import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An actor that cannot go on: the task it stands at, and a value that never came."""

    task: Task
    value: Value


def run_order(rows: Rows) -> tuple[tuple[int, Task], ...]:
    """Sorts all tasks topologically: (actor, task) pairs, each after the tasks that it depends on.

    Raises:
        ScheduleError: if the actors wait for each other; the message names the tasks of the cycle.

    Example:
        >>> order = jq.schedules.run_order(jq.schedules.GPipe(2).rows(num_microbatches=1))
        >>> [f"actor {actor}: {task}" for actor, task in order]
        ['actor 0: 0F0', 'actor 1: 1F0', 'actor 1: 1B0', 'actor 0: 0B0']
    """
    order, waiting = _run(rows)
    if waiting:
        raise ScheduleError(_explain_deadlock(rows, waiting))
    return tuple(order)


def _run(rows: Rows) -> tuple[list[tuple[int, Task]], dict[int, Waiting]]:
    num_stages = count_stages(rows)
    order: list[tuple[int, Task]] = []
    made: set[Value] = set()
    waiting: dict[int, Waiting] = {}
    waiters: dict[Value, list[int]] = {}
    positions = [0] * len(rows)
    ready = list(reversed(range(len(rows))))
    while ready:
        actor = ready.pop()
        waiting.pop(actor, None)
        while positions[actor] < len(rows[actor]):
            task = rows[actor][positions[actor]]
            missing = [value for value in needs_of(task, num_stages=num_stages) if value not in made]
            if missing:
                waiting[actor] = Waiting(task=task, value=missing[0])
                waiters.setdefault(missing[0], []).append(actor)
                break
            positions[actor] += 1
            order.append((actor, task))
            value = made_by(task)
            made.add(value)
            ready.extend(waiters.pop(value, ()))
    return order, waiting


def _explain_deadlock(rows: Rows, waiting: dict[int, Waiting]) -> str:
    makers = {made_by(task): (actor, task) for actor, row in enumerate(rows) for task in row}
    for actor, wait in waiting.items():
        if wait.value not in makers:
            letter, stage, microbatch = wait.value
            missing = f"{stage}{letter}{microbatch}"
            return f"deadlock: {wait.task} (actor {actor}) waits for {missing}, which no actor runs; add it"
    cycle = _find_cycle({actor: makers[wait.value][0] for actor, wait in waiting.items()})
    clauses, cures = [], []
    for actor in cycle:
        target, needed = makers[waiting[actor].value]
        clauses.append(f"waits for {needed} (actor {target})")
        blocker = waiting[target].task
        if needed != blocker:
            clauses.append(f"comes after {blocker}")
            if not depends_on(needed, blocker, num_stages=count_stages(rows)):
                cures.append(f"{needed} before {blocker} on actor {target}")
    first = f"{waiting[cycle[0]].task} (actor {cycle[0]})"
    return f"deadlock: {first} {', which '.join(clauses)}; move {', or '.join(cures)}"


def _find_cycle(successor: dict[int, int]) -> list[int]:
    path = [next(iter(successor))]
    while successor[path[-1]] not in path:
        path.append(successor[path[-1]])
    return path[path.index(successor[path[-1]]) :]
