"""GPipe: all forwards, then all backwards.

Bubble (p-1)(TF+TB) for p stages; every actor keeps the activations of all microbatches. The
backwards run in the order of the microbatches, as in JaxPP; reversed they would take the same
time and memory, but add up gradients in another order than the other schedules.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxquard.ir.task import Phase
from jaxquard.schedules.patterns.pattern import PatternSchedule, StagePhase


@dataclass(frozen=True, slots=True, repr=False)
class GPipe(PatternSchedule):
    """All forwards, then all backwards (Huang et al., 2019).

    Example:
        >>> for row in jq.schedules.GPipe(2).rows(num_microbatches=3):
        ...     print(*row)
        0F0 0F1 0F2 0B0 0B1 0B2
        1F0 1F1 1F2 1B0 1B1 1B2
    """

    name: ClassVar[str] = "gpipe"

    def pattern(self, actor: int, num_microbatches: int) -> list[StagePhase]:
        return [(actor, Phase.FORWARD)] * num_microbatches + [(actor, Phase.BACKWARD)] * num_microbatches
