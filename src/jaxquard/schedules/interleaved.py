"""Megatron's interleaved 1F1B: 1F1B over several chunks per actor (JaxPP section 2.2.1).

Each actor takes p microbatches through one chunk, then the same p through the next, forwards
upwards and backwards downwards. With v chunks an actor waits only for chunks, so the bubble is
(p-1)(TF+TB) in times of one stage: 1F1B's on the same actors divided by v. Actor a keeps up to
(v-1)p + 2(p-1-a) + 1 activations of a stage.

The pattern wants whole groups of p microbatches, so it is made for the next multiple of p. With
one chunk it is eager 1F1B.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxquard.ir.task import Phase
from jaxquard.schedules.looped import Looped
from jaxquard.schedules.pattern import Step


@dataclass(frozen=True, slots=True, repr=False)
class Interleaved(Looped):
    """Interleaved 1F1B (Narayanan et al., 2021): `Interleaved(8, 4)` has 8 stages on 4 actors.

    Example:
        >>> for row in jq.schedules.Interleaved(4, 2).rows(num_microbatches=2):
        ...     print(*row)
        0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
        1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
    """

    name: ClassVar[str] = "interleaved"

    def round_up(self, num_microbatches: int) -> int:
        return -(-num_microbatches // self.num_actors) * self.num_actors

    def pattern(self, actor: int, num_microbatches: int) -> list[Step]:
        chunks = [step // self.num_actors % self.num_chunks for step in range(num_microbatches * self.num_chunks)]
        forwards = [(self.stage_of(actor, chunk), Phase.FORWARD) for chunk in chunks]
        backwards = [(self.stage_of(actor, self.num_chunks - 1 - chunk), Phase.BACKWARD) for chunk in chunks]
        warm_up = (self.num_chunks - 1) * self.num_actors + 2 * (self.num_actors - 1 - actor)
        warm_up = min(warm_up, len(forwards))
        turns = [step for pair in zip(forwards[warm_up:], backwards, strict=False) for step in pair]
        return forwards[:warm_up] + turns + backwards[len(backwards) - warm_up :]
