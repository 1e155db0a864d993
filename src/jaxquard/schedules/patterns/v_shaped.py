"""The V placement: two stages per actor, the second half of the stages coming back.

With p actors, actor a has stage a on the way down and stage 2p-1-a on the way up. So the last
stage stands beside the first, and a loss can turn into a gradient without a transfer.
"""

import abc
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxquard.errors import ScheduleError
from jaxquard.ir.task import Phase
from jaxquard.schedules.patterns.pattern import PatternSchedule, StagePhase
from jaxquard.schedules.schedule import Schedule


@dataclass(frozen=True, slots=True, repr=False)
class VShaped(PatternSchedule, abc.ABC):
    """A schedule of two stages per actor, placed like the letter V."""

    def __post_init__(self) -> None:
        Schedule.__post_init__(self)
        if self.num_stages % 2:
            even = (self.num_stages - 1, self.num_stages + 1)
            cures = " or ".join(f"num_stages={count}" for count in even if count)
            raise ScheduleError(
                f"{self!r} puts two stages on each actor, so it needs an even number of stages, but "
                f"{self.num_stages} is odd. Use {cures}."
            )

    @property
    def num_actors(self) -> int:
        return self.num_stages // 2

    @property
    def splits_backward(self) -> bool:
        return True

    def actor_of(self, stage: int) -> int:
        return min(stage, self.num_stages - 1 - stage)


@dataclass(frozen=True, slots=True, repr=False)
class ZeroBubbleV(VShaped):
    """Zero bubble on a V: no bubble at equal task times, the activations of 1F1B.

    Qi et al., 2024, section 6. At TF = TI = TW the actors never wait once they have started, if there are 2p-1
    microbatches or more for p actors; as with ZB-H2 that counts steps that follow each other without a barrier. An
    actor keeps up to 2p activations of a stage, what 1F1B keeps of stages twice as large. Fewer than 2p-1
    microbatches are taken out of the order for 2p-1.

    Example:
        >>> for row in jq.schedules.ZeroBubbleV(4).rows(num_microbatches=2):
        ...     print(*row)
        0F0 0F1 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 0I1 0W1
        1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1
    """

    name: ClassVar[str] = "zero-bubble-v"

    def round_up(self, num_microbatches: int) -> int:
        return max(num_microbatches, 2 * self.num_actors - 1)

    def pattern(self, actor: int, num_microbatches: int) -> list[StagePhase]:
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


def _phases(stage: int) -> tuple[StagePhase, StagePhase, StagePhase]:
    return (stage, Phase.FORWARD), (stage, Phase.INPUT_GRADIENT), (stage, Phase.WEIGHT_GRADIENT)


@dataclass(frozen=True, slots=True, repr=False)
class DualPipeV(VShaped):
    """Forwards of one chunk paired with backwards of the other, some backwards split.

    Half of DeepSeek's DualPipe, on the V placement. In the main part a forward of one chunk stands beside a backward
    of the other, so that the transfers of the one may hide behind the compute of the other. Most backwards are whole;
    those that begin and end the step are split, and their weight gradients fill what would be waiting. The pattern is
    defined from 2p microbatches up, p being the number of actors; an actor keeps up to 2p+1 activations of a stage.
    Order after DeepSeek-V3's report (2024) and its published code.

    Example:
        >>> for row in jq.schedules.DualPipeV(4).rows(num_microbatches=2):
        ...     print(*row)
        0F0 0F1 3F0 3I0 3W0 3F1 3B1 0B0 0B1
        1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1
    """

    name: ClassVar[str] = "dual-pipe-v"

    def round_up(self, num_microbatches: int) -> int:
        return max(num_microbatches, self.num_stages)

    def pattern(self, actor: int, num_microbatches: int) -> list[StagePhase]:
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


def _cool_down(down: int, up: int, *, num_turns: int, num_left: int) -> Iterator[StagePhase]:
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
