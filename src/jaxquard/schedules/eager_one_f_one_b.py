"""Eager 1F1B: forwards run ahead, so that slow transfers hide behind compute.

Stage s of p warms up with 2(p-s)-1 forwards instead of p-s, and keeps as many activations. A
transfer of time C then costs only on the way in and out: the bubble is (p-1)(TF+TB+2C) as long as
2C <= TF+TB, where 1F1B waits for transfers in every round.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxquard.schedules.pattern import PatternSchedule, Step, one_forward_one_backward


@dataclass(frozen=True, slots=True, repr=False)
class EagerOneFOneB(PatternSchedule):
    """1F1B with the longer warm-up that lets transfers overlap compute (Zhuang et al., 2023).

    Example:
        >>> for row in jq.schedules.EagerOneFOneB(2).rows(num_microbatches=4):
        ...     print(*row)
        0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
        1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3
    """

    name: ClassVar[str] = "eager-1f1b"

    def pattern(self, actor: int, num_microbatches: int) -> list[Step]:
        return one_forward_one_backward(actor, num_microbatches, warm_up=2 * (self.num_stages - actor) - 1)
