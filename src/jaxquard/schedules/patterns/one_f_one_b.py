"""1F1B: after a warm-up, one forward and one backward in turn (JaxPP section 2.2.1); and its eager form."""

from dataclasses import dataclass
from typing import ClassVar

from jaxquard.schedules.patterns.pattern import PatternSchedule, StagePhase, one_forward_one_backward


@dataclass(frozen=True, slots=True, repr=False)
class OneFOneB(PatternSchedule):
    """One forward, one backward (Narayanan et al., 2019, with a flush).

    Stage s of p warms up with p-s forwards and so never keeps more than p-s activations, however many microbatches
    there are. The bubble is GPipe's, (p-1)(TF+TB).

    Example:
        >>> for row in jq.schedules.OneFOneB(2).rows(num_microbatches=3):
        ...     print(*row)
        0F0 0F1 0B0 0F2 0B1 0B2
        1F0 1B0 1F1 1B1 1F2 1B2
    """

    name: ClassVar[str] = "1f1b"

    def pattern(self, actor: int, num_microbatches: int) -> list[StagePhase]:
        return one_forward_one_backward(actor, num_microbatches, warm_up=self.num_stages - actor)


@dataclass(frozen=True, slots=True, repr=False)
class EagerOneFOneB(PatternSchedule):
    """1F1B with the longer warm-up that lets transfers overlap compute (Zhuang et al., 2023).

    Stage s of p warms up with 2(p-s)-1 forwards instead of p-s, and keeps as many activations. A transfer of time C
    then costs only on the way in and out: the bubble is (p-1)(TF+TB+2C) as long as 2C <= TF+TB, where 1F1B waits for
    transfers in every round.

    Example:
        >>> for row in jq.schedules.EagerOneFOneB(2).rows(num_microbatches=4):
        ...     print(*row)
        0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
        1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3
    """

    name: ClassVar[str] = "eager-1f1b"

    def pattern(self, actor: int, num_microbatches: int) -> list[StagePhase]:
        return one_forward_one_backward(actor, num_microbatches, warm_up=2 * (self.num_stages - actor) - 1)
