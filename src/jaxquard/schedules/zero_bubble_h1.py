"""ZB-H1: 1F1B with the backward split, in the memory of 1F1B (Qi et al., 2024, section 2.1).

The warm-up is that of 1F1B. The input gradient goes back at once, so the stages before it start
sooner; stage s puts its weight gradients off by s microbatches, which fills the end. Bubble
(p-1)(TF+TI-TW) while TW is the shortest of the three; every stage keeps p activations, as many
as the first stage of 1F1B.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxquard.schedules.pattern import PatternSchedule, Step, delayed_weight_gradients


@dataclass(frozen=True, slots=True, repr=False)
class ZeroBubbleH1(PatternSchedule):
    """Zero bubble, handcrafted, memory-efficient: a third of 1F1B's bubble in its memory.

    Example:
        >>> for row in jq.schedules.ZeroBubbleH1(2).rows(num_microbatches=3):
        ...     print(*row)
        0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2
        1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
    """

    name: ClassVar[str] = "zero-bubble-h1"

    @property
    def splits_backward(self) -> bool:
        return True

    def pattern(self, actor: int, num_microbatches: int) -> list[Step]:
        return delayed_weight_gradients(actor, num_microbatches, warm_up=self.num_stages - actor, delay=actor)
