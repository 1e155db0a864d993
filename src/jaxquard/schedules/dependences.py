"""The value that a task makes and those that it needs: the order that data imposes on any schedule.

For one microbatch, with stages from 0 up:

    F of stage s needs F of s-1
    B or I of stage s needs F of s, and B or I of s+1
    W of stage s needs I of s

A value is named by the letter of the phase that makes it, its stage and its microbatch. A whole
backward makes the same input gradient as an `I` does, so both make the value named `I`.
"""

from jaxquard.ir.task import Phase, Task
from jaxquard.schedules.schedule import Rows

# Letters, not phases: an enum's hash runs in Python, and large schedules look up many values.
Value = tuple[str, int, int]


def made_by(task: Task) -> Value:
    """The value that a task makes."""
    if task.phase is Phase.FORWARD:
        return "F", task.stage, task.microbatch
    if task.phase is Phase.WEIGHT_GRADIENT:
        return "W", task.stage, task.microbatch
    return "I", task.stage, task.microbatch


def needs_of(task: Task, *, num_stages: int) -> tuple[Value, ...]:
    """The values that must be there before a task can start."""
    stage, microbatch = task.stage, task.microbatch
    if task.phase is Phase.FORWARD:
        return (("F", stage - 1, microbatch),) if stage else ()
    if task.phase is Phase.WEIGHT_GRADIENT:
        return (("I", stage, microbatch),)
    if stage == num_stages - 1:
        return (("F", stage, microbatch),)
    return ("F", stage, microbatch), ("I", stage + 1, microbatch)


def depends_on(task: Task, other: Task, *, num_stages: int) -> bool:
    """Returns True if a task needs another one's value, directly or through further tasks."""
    if task.microbatch != other.microbatch or other.phase is Phase.WEIGHT_GRADIENT:
        return False
    if task.phase is Phase.WEIGHT_GRADIENT:
        return _position(other, num_stages) <= 2 * num_stages - 1 - task.stage
    return _position(other, num_stages) < _position(task, num_stages)


def _position(task: Task, num_stages: int) -> int:
    """Returns the position of a task in its microbatch's way down the stages and back up."""
    return task.stage if task.phase is Phase.FORWARD else 2 * num_stages - 1 - task.stage


def count_stages(rows: Rows) -> int:
    """One more than the highest stage that has a task."""
    return 1 + max((task.stage for row in rows for task in row), default=-1)
