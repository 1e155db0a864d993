"""ZB-H2: no bubble for twice the memory (Qi et al., 2024, section 2.2).

Stage s of p warms up with 2(p-s)-1 forwards, which fill the wait for the first gradient, and
puts its weight gradients off by 2s microbatches. The bubble is (p-1)(TF+TI-2TW), none at equal
times, when steps follow each other without a barrier: the actors' times form a parallelogram, so
a lone step still shows its slanted ends. Every stage keeps up to 2p-1 activations. It takes
2p-1 microbatches to fill the pipeline.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxquard.schedules.pattern import PatternSchedule, Step, delayed_weight_gradients


@dataclass(frozen=True, slots=True, repr=False)
class ZeroBubbleH2(PatternSchedule):
    """Zero bubble, handcrafted: no bubble at equal task times, twice the activations of 1F1B.

    Example:
        >>> for row in jq.schedules.ZeroBubbleH2(2).rows(num_microbatches=3):
        ...     print(*row)
        0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2
        1F0 1I0 1F1 1I1 1F2 1I2 1W0 1W1 1W2
    """

    name: ClassVar[str] = "zero-bubble-h2"

    @property
    def splits_backward(self) -> bool:
        return True

    def pattern(self, actor: int, num_microbatches: int) -> list[Step]:
        return delayed_weight_gradients(
            actor, num_microbatches, warm_up=2 * (self.num_stages - actor) - 1, delay=2 * actor
        )
