"""The loop placement: stage s stands on actor s % num_actors, so each actor has several chunks.

With p actors, actor a has the stages a, a+p, a+2p, ...: its chunks 0, 1, 2, ...
"""

import abc
from dataclasses import dataclass, field
from typing import ClassVar

from jaxquard.errors import ScheduleError
from jaxquard.ir.task import Phase
from jaxquard.schedules.patterns.pattern import PatternSchedule, StagePhase
from jaxquard.schedules.schedule import Schedule, require_count


@dataclass(frozen=True, slots=True, repr=False)
class Looped(PatternSchedule, abc.ABC):
    """A schedule of several stages per actor, placed round and round.

    Attributes:
        num_actors: number of actors that share the stages; it must divide their number.
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
            f"{self.num_actors} actors. Use num_stages={multiples}, or num_actors={', '.join(divisors)}."
        )


@dataclass(frozen=True, slots=True, repr=False)
class Interleaved(Looped):
    """Interleaved 1F1B (Narayanan et al., 2021): `Interleaved(8, 4)` has 8 stages on 4 actors.

    1F1B over several chunks per actor, as Megatron runs it (JaxPP section 2.2.1). Each actor takes p microbatches
    through one chunk, then the same p through the next, forwards upwards and backwards downwards. With v chunks an
    actor waits only for chunks, so the bubble is (p-1)(TF+TB) in times of one stage: 1F1B's on the same actors
    divided by v. Actor a keeps up to (v-1)p + 2(p-1-a) + 1 activations of a stage.

    The pattern wants whole groups of p microbatches, so it is made for the next multiple of p. With one chunk it is
    eager 1F1B.

    Example:
        >>> for row in jq.schedules.Interleaved(4, 2).rows(num_microbatches=2):
        ...     print(*row)
        0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
        1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
    """

    name: ClassVar[str] = "interleaved"

    def round_up(self, num_microbatches: int) -> int:
        return -(-num_microbatches // self.num_actors) * self.num_actors

    def pattern(self, actor: int, num_microbatches: int) -> list[StagePhase]:
        # A group of microbatches goes through all chunks; then the next group does.
        stages = [self.stage_of(actor, chunk) for chunk in range(self.num_chunks) for _ in range(self.num_actors)]
        num_groups = num_microbatches // self.num_actors
        forwards = [(stage, Phase.FORWARD) for stage in stages] * num_groups
        backwards = [(stage, Phase.BACKWARD) for stage in reversed(stages)] * num_groups
        warm_up = (self.num_chunks - 1) * self.num_actors + 2 * (self.num_actors - 1 - actor)
        warm_up = min(warm_up, len(forwards))
        turns = [step for pair in zip(forwards[warm_up:], backwards, strict=False) for step in pair]
        return forwards[:warm_up] + turns + backwards[len(backwards) - warm_up :]


@dataclass(frozen=True, slots=True, repr=False)
class LoopedBFS(Looped):
    """Breadth-first pipeline (Lamy-Poirier, 2023): `LoopedBFS(8, 4)` has 8 stages on 4 actors.

    All microbatches go through one chunk before the next: GPipe over the loop placement. Bubble (p-1)(TF+TB) in times
    of one stage when there are at least p microbatches, and the activations of all microbatches of all chunks are kept.
    It takes up each stage once per direction, so sharded weights are gathered once per direction too. The backwards
    run in the order of the microbatches, as in `GPipe`.

    Example:
        >>> for row in jq.schedules.LoopedBFS(4, 2).rows(num_microbatches=2):
        ...     print(*row)
        0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
        1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1
    """

    name: ClassVar[str] = "looped-bfs"

    def pattern(self, actor: int, num_microbatches: int) -> list[StagePhase]:
        stages = [self.stage_of(actor, chunk) for chunk in range(self.num_chunks)]
        forwards = [(stage, Phase.FORWARD) for stage in stages for _ in range(num_microbatches)]
        backwards = [(stage, Phase.BACKWARD) for stage in reversed(stages) for _ in range(num_microbatches)]
        return forwards + backwards
