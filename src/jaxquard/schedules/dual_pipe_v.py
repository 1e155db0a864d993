"""DualPipeV: DeepSeek's DualPipe cut in half, on the V placement.

In the main part a forward of one chunk stands beside a backward of the other, so that the
transfers of the one may hide behind the compute of the other. Most backwards are whole; those
that begin and end the step are split, and their weight gradients fill what would be waiting. The
pattern is defined from 2p microbatches up, p being the number of actors; an actor keeps up to
2p+1 activations of a stage. Order after DeepSeek-V3's report (2024) and its published code.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxquard.ir.task import Phase
from jaxquard.schedules.pattern import Step
from jaxquard.schedules.v_shaped import VShaped


@dataclass(frozen=True, slots=True, repr=False)
class DualPipeV(VShaped):
    """Forwards of one chunk paired with backwards of the other, some backwards split.

    Example:
        >>> for row in jq.schedules.DualPipeV(4).rows(num_microbatches=2):
        ...     print(*row)
        0F0 0F1 3F0 3I0 3W0 3F1 3B1 0B0 0B1
        1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1
    """

    name: ClassVar[str] = "dual-pipe-v"

    def round_up(self, num_microbatches: int) -> int:
        return max(num_microbatches, self.num_stages)

    def pattern(self, actor: int, num_microbatches: int) -> list[Step]:
        actors_after = self.num_actors - 1 - actor
        down, up = actor, self.num_stages - 1 - actor
        down_forward, down_backward = (down, Phase.FORWARD), (down, Phase.BACKWARD)
        up_forward, up_backward = (up, Phase.FORWARD), (up, Phase.BACKWARD)
        split_up = [(up, Phase.INPUT_GRADIENT), (up, Phase.WEIGHT_GRADIENT)]
        pairs = num_microbatches - 2 * actors_after - actor - 1
        return [
            *[down_forward] * (2 * actors_after),
            *[down_forward, up_forward] * (actor + 1),
            *[*split_up, up_forward] * actors_after,
            *[down_forward, up_backward, up_forward, down_backward] * pairs,
            *[up_backward, up_forward, down_backward] * actors_after,
            *_cool_down(down, up, num_turns=actor + 1, num_left=actors_after),
        ]


def _cool_down(down: int, up: int, *, num_turns: int, num_left: int) -> Iterator[Step]:
    """The last backwards: whole ones, then split ones whose weight gradients wait for a gap.

    Of the `2 * num_turns` backwards that alternate between the chunks, the first `num_turns` are
    whole. Then `num_left` backwards of the first chunk remain, each with a weight gradient before.
    """
    waiting = deque[int]()
    for position, stage in enumerate([up, down] * num_turns):
        if position < num_turns:
            yield stage, Phase.BACKWARD
        else:
            yield stage, Phase.INPUT_GRADIENT
            waiting.append(stage)
    for _ in range(num_left):
        yield waiting.popleft(), Phase.WEIGHT_GRADIENT
        yield down, Phase.INPUT_GRADIENT
        waiting.append(down)
    for stage in waiting:
        yield stage, Phase.WEIGHT_GRADIENT
