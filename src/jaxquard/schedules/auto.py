"""`AUTO`: stands where a schedule stands, and leaves stages, order and shardings to a plan."""

from dataclasses import dataclass
from typing import ClassVar, NoReturn

from jaxquard.errors import ScheduleError
from jaxquard.schedules.schedule import Schedule


@dataclass(frozen=True, slots=True, repr=False)
class Auto(Schedule):
    """No schedule yet: a plan decides. Plain `jax.jit` runs the loop as any other; nothing else does.

    Example:
        >>> jq.schedules.AUTO
        AUTO
    """

    name: ClassVar[str] = "auto"
    num_stages: int = 1

    def rows(self, num_microbatches: int) -> NoReturn:
        raise ScheduleError(
            f"the schedule is AUTO: it has no order for {num_microbatches} microbatches until a plan decides. Plan the "
            "step with jaxquard.plan(step, args, ...) and run what the plan makes of it, start from the loss with "
            "jaxquard.parallelize, or write a schedule such as jaxquard.schedules.OneFOneB(2)."
        )

    def __repr__(self) -> str:
        return "AUTO"


AUTO = Auto()
