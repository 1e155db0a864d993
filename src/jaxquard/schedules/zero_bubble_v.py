"""ZB-V: no bubble in the memory of 1F1B, on the V placement (Qi et al., 2024, section 6).

At TF = TI = TW the actors never wait once they have started, if there are 2p-1 microbatches or
more for p actors; as with ZB-H2 that counts steps that follow each other without a barrier. An
actor keeps up to 2p activations of a stage, what 1F1B keeps of stages twice as large. Fewer than
2p-1 microbatches are taken out of the order for 2p-1.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxquard.ir.task import Phase
from jaxquard.schedules.pattern import Step
from jaxquard.schedules.v_shaped import VShaped


@dataclass(frozen=True, slots=True, repr=False)
class ZeroBubbleV(VShaped):
    """Zero bubble on a V: no bubble at equal task times, the activations of 1F1B.

    Example:
        >>> for row in jq.schedules.ZeroBubbleV(4).rows(num_microbatches=2):
        ...     print(*row)
        0F0 0F1 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 0I1 0W1
        1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1
    """

    name: ClassVar[str] = "zero-bubble-v"

    def round_up(self, num_microbatches: int) -> int:
        return max(num_microbatches, 2 * self.num_actors - 1)

    def pattern(self, actor: int, num_microbatches: int) -> list[Step]:
        down, up = actor, self.num_stages - 1 - actor
        down_forward, down_input, down_weight = _phases(down)
        up_forward, up_input, up_weight = _phases(up)
        actors_after = self.num_actors - 1 - actor
        warm_up = (
            [down_forward] * (2 * actors_after + 1)
            + [up_forward, down_forward] * actor
            + [up_forward, up_input, up_weight] * (actors_after + 1)
        )
        turn = [down_input, down_weight, up_forward, up_input, up_weight]
        steady = [down_forward, *turn] * (num_microbatches - 2 * actors_after - actor - 1)
        cool_down = (
            turn * actors_after
            + [down_input, up_input] * actor
            + [down_input, down_weight] * (actors_after + 1)
            + [up_weight] * actor
            + [down_weight] * actor
        )
        return warm_up + steady + cool_down


def _phases(stage: int) -> tuple[Step, Step, Step]:
    return (stage, Phase.FORWARD), (stage, Phase.INPUT_GRADIENT), (stage, Phase.WEIGHT_GRADIENT)
