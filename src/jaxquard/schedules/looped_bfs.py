"""Looped BFS: breadth first, all microbatches through one chunk before the next.

GPipe over the loop placement: bubble (p-1)(TF+TB) in times of one stage when there are at least
p microbatches, and the activations of all microbatches of all chunks are kept. It takes up each
stage once per direction, so sharded weights are gathered least often. The backwards run in the
order of the microbatches, as in `gpipe.py`.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxquard.ir.task import Phase
from jaxquard.schedules.looped import Looped
from jaxquard.schedules.pattern import Step


@dataclass(frozen=True, slots=True, repr=False)
class LoopedBFS(Looped):
    """Breadth-first pipeline (Lamy-Poirier, 2023): `LoopedBFS(8, 4)` has 8 stages on 4 actors.

    Example:
        >>> for row in jq.schedules.LoopedBFS(4, 2).rows(num_microbatches=2):
        ...     print(*row)
        0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
        1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1
    """

    name: ClassVar[str] = "looped-bfs"

    def pattern(self, actor: int, num_microbatches: int) -> list[Step]:
        stages = [self.stage_of(actor, chunk) for chunk in range(self.num_chunks)]
        forwards = [(stage, Phase.FORWARD) for stage in stages for _ in range(num_microbatches)]
        backwards = [(stage, Phase.BACKWARD) for stage in reversed(stages) for _ in range(num_microbatches)]
        return forwards + backwards
