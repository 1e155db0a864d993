"""The values that go from stage to stage: which task makes each, which one uses it, and whether it crosses actors.

A value is a number: `stage * num_microbatches + microbatch` for the output of a forward, and as much further on for the
input gradient of a stage, which goes to the stage before. Outputs of the last stage and input gradients of the first go
nowhere.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxquard.simulate.actor_link import INSTANT, ActorLinks
from jaxquard.simulate.play_steps import NO_MESSAGE, Messages
from jaxquard.simulate.stage_cost import StageCost
from jaxquard.simulate.task_order import BACKWARD, FORWARD, INPUT_GRADIENT, TaskOrder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskValues:
    """The values of all tasks of an order.

    Attributes:
        made: for each task the value that it makes for another stage; -1 for none.
        used: for each task the value that it needs from another stage; -1 for none.
        maker: for each value the position of the task that makes it; -1 for none.
        crosses: for each value, whether its user is on another actor.
    """

    made: np.ndarray
    used: np.ndarray
    maker: np.ndarray
    crosses: np.ndarray

    def sends(self) -> np.ndarray:
        """For each task the value that it sends to another actor; -1 for none."""
        return self._crossing(self.made)

    def waits(self) -> np.ndarray:
        """For each task the value that it waits for from another actor; -1 for none."""
        return self._crossing(self.used)

    def _crossing(self, values: np.ndarray) -> np.ndarray:
        return np.where((values >= 0) & self.crosses[values], values, NO_MESSAGE)


@functools.lru_cache(maxsize=8)
def values_of(order: TaskOrder) -> TaskValues:
    """Finds the values of an order."""
    num_stages, num_microbatches = order.num_stages, order.num_microbatches
    kinds, stages, microbatches = order.kinds, order.stages, order.microbatches
    is_forward = kinds == FORWARD
    is_gradient = (kinds == BACKWARD) | (kinds == INPUT_GRADIENT)
    output = stages * num_microbatches + microbatches
    gradient = output + num_stages * num_microbatches
    made = np.select(
        [is_forward & (stages < num_stages - 1), is_gradient & (stages > 0)], [output, gradient], default=NO_MESSAGE
    )
    used = np.select(
        [is_forward & (stages > 0), is_gradient & (stages < num_stages - 1)],
        [output - num_microbatches, gradient + num_microbatches],
        default=NO_MESSAGE,
    )
    maker = np.full(2 * num_stages * num_microbatches, NO_MESSAGE)
    positions = np.flatnonzero(made >= 0)
    maker[made[positions]] = positions
    sources, targets = value_ends(order)
    crosses = np.repeat(sources != targets, num_microbatches)
    return TaskValues(made=made, used=used, maker=maker, crosses=crosses)


def value_ends(order: TaskOrder) -> tuple[np.ndarray, np.ndarray]:
    """Returns the actors between which the values of each stage go: outputs, then input gradients."""
    actor_of = order.actor_of
    after = np.append(actor_of[1:], actor_of[-1:])
    before = np.append(actor_of[:1], actor_of[:-1])
    return np.concatenate([actor_of, actor_of]), np.concatenate([after, before])


def value_sizes(costs: Sequence[StageCost]) -> np.ndarray:
    """Returns the bytes of the values of each stage: outputs, then input gradients."""
    outputs = np.asarray([cost.output_bytes for cost in costs], dtype=np.int64)
    return np.concatenate([outputs, outputs[:1], outputs[:-1]])


def messages_of(order: TaskOrder, costs: Sequence[StageCost], links: ActorLinks) -> Messages:
    """Returns the link and the seconds of each value, as if it crossed actors."""
    sources, targets = (ends.tolist() for ends in value_ends(order))
    sizes = value_sizes(costs).tolist()
    numbers = [source * order.num_actors + target for source, target in zip(sources, targets, strict=True)]
    times_s = [
        links.get((source, target), INSTANT).time_s(size)
        for source, target, size in zip(sources, targets, sizes, strict=True)
    ]
    num_microbatches = order.num_microbatches
    return Messages(
        links=np.repeat(numbers, num_microbatches).tolist(), times_s=np.repeat(times_s, num_microbatches).tolist()
    )
