"""The V placement: two stages per actor, the second half of the stages coming back.

With p actors, actor a has stage a on the way down and stage 2p-1-a on the way up. So the last
stage stands beside the first, and a loss can turn into a gradient without a transfer.
"""

import abc
from dataclasses import dataclass

from jaxquard.errors import ScheduleError
from jaxquard.schedules.pattern import PatternSchedule
from jaxquard.schedules.schedule import Schedule


@dataclass(frozen=True, slots=True, repr=False)
class VShaped(PatternSchedule, abc.ABC):
    """A schedule of two stages per actor, placed like the letter V."""

    def __post_init__(self) -> None:
        Schedule.__post_init__(self)
        if self.num_stages % 2:
            name, even = type(self).__name__, (self.num_stages - 1, self.num_stages + 1)
            cures = " or ".join(f"{name}({count})" for count in even if count)
            raise ScheduleError(
                f"{self!r} puts two stages on each actor, so it needs an even number of stages, but "
                f"{self.num_stages} is odd. Use {cures}."
            )

    @property
    def num_actors(self) -> int:
        return self.num_stages // 2

    @property
    def splits_backward(self) -> bool:
        return True

    def actor_of(self, stage: int) -> int:
        return min(stage, self.num_stages - 1 - stage)
