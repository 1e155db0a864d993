"""A schedule that the user writes down, task by task (JaxPP section 4.2).

The rows fix the stages, the actors and the number of microbatches. They are checked when the
schedule is made, so that a mistake shows where it was written.
"""

from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import ClassVar

from jaxquard.errors import ScheduleError
from jaxquard.ir.task import Phase, Task
from jaxquard.schedules.check import check_rows
from jaxquard.schedules.dependences import count_stages
from jaxquard.schedules.rows_csv import parse_row, read_csv
from jaxquard.schedules.schedule import Rows, Schedule, require_count


@dataclass(frozen=True, slots=True, repr=False)
class Custom(Schedule):
    """A schedule whose rows are written out.

    Args:
        lines: for each actor its tasks in order, as text or as a sequence of `Task`.

    Attributes:
        tasks: the same, as tasks.

    Example:
        >>> schedule = jq.schedules.Custom(["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"])
        >>> schedule.num_stages, schedule.num_actors
        (2, 2)
    """

    name: ClassVar[str] = "custom"
    num_stages: int = field(init=False)
    lines: InitVar[Sequence[str | Iterable[Task]]]
    tasks: Rows = field(init=False)

    def __post_init__(self, lines: Sequence[str | Iterable[Task]]) -> None:
        rows = tuple(
            parse_row(line, line_number=number) if isinstance(line, str) else tuple(line)
            for number, line in enumerate(lines, start=1)
        )
        if not any(rows):
            raise ScheduleError(
                "Custom has no task. Give it a row for each actor, such as Custom(['0F0,0B0', '1F0,1B0'])."
            )
        object.__setattr__(self, "tasks", rows)
        object.__setattr__(self, "num_stages", count_stages(rows))
        check_rows(rows, num_stages=self.num_stages, num_microbatches=self.num_microbatches)

    def __repr__(self) -> str:
        return f"Custom({[','.join(map(str, row)) for row in self.tasks]!r})"

    @classmethod
    def from_csv(cls, path_or_text: str | Path) -> "Custom":
        """Reads a CSV file, or its text, as PyTorch writes it (see `read_csv`)."""
        return cls(read_csv(path_or_text))

    @property
    def num_actors(self) -> int:
        return len(self.tasks)

    @property
    def num_microbatches(self) -> int:
        """The only number of microbatches that the rows can run."""
        return 1 + max(task.microbatch for row in self.tasks for task in row)

    @property
    def splits_backward(self) -> bool:
        return any(task.phase is Phase.INPUT_GRADIENT for row in self.tasks for task in row)

    def actor_of(self, stage: int) -> int:
        rows_of_stage = (any(task.stage == stage for task in row) for row in self.tasks)
        return list(rows_of_stage).index(True)

    def rows(self, num_microbatches: int) -> Rows:
        """The rows as given.

        Raises:
            ScheduleError: if asked for another number of microbatches than the rows have.
        """
        require_count(self, num_microbatches=num_microbatches)
        if num_microbatches != self.num_microbatches:
            raise ScheduleError(
                f"this Custom schedule is written for num_microbatches={self.num_microbatches}, but "
                f"num_microbatches={num_microbatches} was asked for. Use {self.num_microbatches}, or write "
                f"rows for {num_microbatches}."
            )
        return self.tasks
