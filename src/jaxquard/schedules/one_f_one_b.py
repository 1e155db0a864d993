"""1F1B: after a warm-up, one forward and one backward in turn (JaxPP section 2.2.1).

Stage s of p warms up with p-s forwards and so never keeps more than p-s activations, however
many microbatches there are. The bubble is GPipe's, (p-1)(TF+TB).
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxquard.schedules.pattern import PatternSchedule, Step, one_forward_one_backward


@dataclass(frozen=True, slots=True, repr=False)
class OneFOneB(PatternSchedule):
    """One forward, one backward (Narayanan et al., 2019, with a flush).

    Example:
        >>> for row in jq.schedules.OneFOneB(2).rows(num_microbatches=3):
        ...     print(*row)
        0F0 0F1 0B0 0F2 0B1 0B2
        1F0 1B0 1F1 1B1 1F2 1B2
    """

    name: ClassVar[str] = "1f1b"

    def pattern(self, actor: int, num_microbatches: int) -> list[Step]:
        return one_forward_one_backward(actor, num_microbatches, warm_up=self.num_stages - actor)
