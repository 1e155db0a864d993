"""The base of all schedules: a few numbers, and from them the order of each actor's tasks.

A schedule knows nothing of JAX. It is a value: two with the same numbers are equal, and its
`repr` is what the user wrote, `Interleaved(8, 4)`. `check_rows` says whether the order that it
gives can run.
"""

import abc
from dataclasses import dataclass, fields
from typing import ClassVar

from jaxquard.errors import ScheduleError
from jaxquard.ir.task import Task

Rows = tuple[tuple[Task, ...], ...]


@dataclass(frozen=True, slots=True, repr=False)
class Schedule(abc.ABC):
    """An order of tasks for each actor.

    Attributes:
        num_stages: number of stages; the step must have as many.
        name: its name on the command line.

    Example:
        >>> schedule = jq.schedules.Interleaved(8, 4)
        >>> schedule.num_stages, schedule.num_actors, schedule.actor_of(5), schedule.splits_backward
        (8, 4, 1, False)
    """

    num_stages: int
    name: ClassVar[str]

    def __post_init__(self) -> None:
        require_count(self, num_stages=self.num_stages)

    def __repr__(self) -> str:
        values = ", ".join(repr(getattr(self, field.name)) for field in fields(self))
        return f"{type(self).__name__}({values})"

    @property
    def num_actors(self) -> int:
        """Number of actors that share the stages; one each unless the schedule says otherwise."""
        return self.num_stages

    @property
    def splits_backward(self) -> bool:
        """True if some backwards run as an input gradient (I) and, later, a weight gradient (W)."""
        return False

    def actor_of(self, stage: int) -> int:
        """The actor that runs every task of a stage."""
        return stage % self.num_actors

    @abc.abstractmethod
    def rows(self, num_microbatches: int) -> Rows:
        """The order of the tasks: a row for each actor."""


def require_count(schedule: Schedule, **counts: int) -> None:
    """Refuses a count that is not a whole number from 1 up."""
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ScheduleError(
                f"{type(schedule).__name__} needs {name} to be a whole number, 1 or more, but it is "
                f"{value!r}. Pass such a number."
            )
