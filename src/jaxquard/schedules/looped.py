"""The loop placement: stage s stands on actor s % num_actors, so each actor has several chunks.

With p actors, actor a has the stages a, a+p, a+2p, ...: its chunks 0, 1, 2, ...
"""

import abc
from dataclasses import dataclass, field

from jaxquard.errors import ScheduleError
from jaxquard.schedules.pattern import PatternSchedule
from jaxquard.schedules.schedule import Schedule, require_count


@dataclass(frozen=True, slots=True, repr=False)
class Looped(PatternSchedule, abc.ABC):
    """A schedule of several stages per actor, placed round and round.

    Attributes:
        num_actors: how many actors share the stages; it must divide their number.
    """

    # `field()`, or the dataclass would take the base's property for a default value.
    num_actors: int = field()

    def __post_init__(self) -> None:
        Schedule.__post_init__(self)
        require_count(self, num_actors=self.num_actors)
        if self.num_stages % self.num_actors:
            raise ScheduleError(self._explain_remainder())

    @property
    def num_chunks(self) -> int:
        """Stages per actor; JaxPP calls it the degree of circular repeat."""
        return self.num_stages // self.num_actors

    def stage_of(self, actor: int, chunk: int) -> int:
        """The stage that is the given chunk of an actor."""
        return chunk * self.num_actors + actor

    def _explain_remainder(self) -> str:
        below = self.num_stages - self.num_stages % self.num_actors
        multiples = " or ".join(str(count) for count in (below, below + self.num_actors) if count)
        divisors = [str(count) for count in range(1, self.num_stages + 1) if self.num_stages % count == 0]
        return (
            f"{self!r} gives every actor as many stages, but {self.num_stages} stages do not divide among "
            f"{self.num_actors} actors. Make {multiples} stages, or use one of {', '.join(divisors)} actors."
        )
