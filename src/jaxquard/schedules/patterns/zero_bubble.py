"""Zero-bubble schedules on one stage per actor: the backward is split (Qi et al., 2024, section 2).

The input gradient goes back at once, so the stages before it start sooner; weight gradients are put off and fill what
would be waiting. Times: TF of a forward, TI of an input gradient, TW of a weight gradient; p is the number of stages.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxquard.schedules.patterns.pattern import PatternSchedule, StagePhase, delayed_weight_gradients


@dataclass(frozen=True, slots=True, repr=False)
class ZeroBubbleH1(PatternSchedule):
    """Zero bubble, handcrafted, memory-efficient: a third of 1F1B's bubble in its memory.

    The warm-up is that of 1F1B (section 2.1). Stage s puts its weight gradients off by s microbatches, which fills the
    end. Bubble (p-1)(TF+TI-TW) while TW is the shortest of the three; every stage keeps p activations, as many as the
    first stage of 1F1B.

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

    def pattern(self, actor: int, num_microbatches: int) -> list[StagePhase]:
        return delayed_weight_gradients(actor, num_microbatches, warm_up=self.num_stages - actor, delay=actor)


@dataclass(frozen=True, slots=True, repr=False)
class ZeroBubbleH2(PatternSchedule):
    """Zero bubble, handcrafted: no bubble at equal task times, twice the activations of 1F1B.

    Stage s of p warms up with 2(p-s)-1 forwards (section 2.2), which fill the wait for the first gradient, and puts its
    weight gradients off by 2s microbatches. The bubble is (p-1)(TF+TI-2TW), none at equal times, when steps follow each
    other without a barrier: the actors' times form a parallelogram, so a lone step still shows its slanted ends. Every
    stage keeps up to 2p-1 activations. It takes 2p-1 microbatches to fill the pipeline.

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

    def pattern(self, actor: int, num_microbatches: int) -> list[StagePhase]:
        return delayed_weight_gradients(
            actor, num_microbatches, warm_up=2 * (self.num_stages - actor) - 1, delay=2 * actor
        )
