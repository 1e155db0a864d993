"""The memory of each actor while a schedule plays.

weights       weights and optimizer state, all the time
gradients     the sums over microbatches, all the time
activations   from the start of a forward to the end of its backward; with a split backward to the end of the weight
              gradient, of which `deferred_bytes` are left when the input gradient ends
working       temporary values, while a task runs
transfers     what a task sends, from its end until it has arrived; what one receives, from when it comes until the
              forward starts that keeps it, or the backward ends that uses it up
"""

from collections.abc import Sequence

import numpy as np

from jaxquard.simulate.actor_memory import (
    ACTIVATIONS,
    GRADIENTS,
    TRANSFERS,
    WEIGHTS,
    WORKING,
    ActorMemory,
    Lives,
    add_up,
)
from jaxquard.simulate.play_steps import PlayedSteps
from jaxquard.simulate.stage_cost import StageCost
from jaxquard.simulate.task_order import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, TaskOrder
from jaxquard.simulate.task_values import TaskValues, value_sizes


def memory_of_tasks(
    order: TaskOrder,
    costs: Sequence[StageCost],
    values: TaskValues,
    played: PlayedSteps,
    *,
    starts_s: np.ndarray,
    ends_s: np.ndarray,
) -> tuple[ActorMemory, ...]:
    """Returns the memory of each actor."""
    accounting = _Accounting(order, costs, values, played, starts_s, ends_s)
    return tuple(accounting.memory(actor) for actor in range(order.num_actors))


class _Accounting:
    """The lives of all values, found actor by actor."""

    def __init__(
        self,
        order: TaskOrder,
        costs: Sequence[StageCost],
        values: TaskValues,
        played: PlayedSteps,
        starts_s: np.ndarray,
        ends_s: np.ndarray,
    ) -> None:
        self.order, self.costs, self.values = order, costs, values
        self.starts_s, self.ends_s, self.sends = starts_s, ends_s, values.sends()
        self.received_s, self.arrived_s = np.asarray(played.received_s), np.asarray(played.arrived_s)
        self.value_sizes = np.repeat(value_sizes(costs), order.num_microbatches)
        self.keys = order.stages * order.num_microbatches + order.microbatches
        self.deferred_s = self._when(INPUT_GRADIENT)
        self.released_s = np.fmax(self._when(BACKWARD), self._when(WEIGHT_GRADIENT))

    def _when(self, kind: int) -> np.ndarray:
        """When the tasks of a kind end, by stage and microbatch; NaN where there is none."""
        found = np.full(self.order.num_stages * self.order.num_microbatches, np.nan)
        chosen = self.order.kinds == kind
        found[self.keys[chosen]] = self.ends_s[chosen]
        return found

    def memory(self, actor: int) -> ActorMemory:
        tasks = slice(self.order.bounds[actor], self.order.bounds[actor + 1])
        stages = [stage for stage in range(self.order.num_stages) if self.order.actor_of[stage] == actor]
        lives = {
            ACTIVATIONS: self._activations(tasks),
            WORKING: self._working(tasks),
            TRANSFERS: [self._sent(tasks), self._received(tasks)],
        }
        always = {
            WEIGHTS: sum(self.costs[stage].weight_bytes for stage in stages),
            GRADIENTS: sum(self.costs[stage].gradient_bytes for stage in stages),
        }
        return add_up(lives, always=always)

    def _activations(self, tasks: slice) -> list[Lives]:
        forwards = tasks.start + np.flatnonzero(self.order.kinds[tasks] == FORWARD)
        keys, stages = self.keys[forwards], self.order.stages[forwards]
        sizes = self._of_stages("activation_bytes")[stages]
        released_s = self.released_s[keys]
        # Without a backward nothing is kept beyond the forward.
        released_s = np.where(np.isnan(released_s), self.ends_s[forwards], released_s)
        left = [cost.activation_bytes if cost.deferred_bytes is None else cost.deferred_bytes for cost in self.costs]
        left = np.minimum(np.asarray(left, dtype=np.int64)[stages], sizes)
        early_s = np.where(np.isnan(self.deferred_s[keys]), released_s, self.deferred_s[keys])
        starts_s = self.starts_s[forwards]
        return [(starts_s, early_s, sizes - left), (starts_s, released_s, left)]

    def _working(self, tasks: slice) -> list[Lives]:
        is_forward = self.order.kinds[tasks] == FORWARD
        stages = self.order.stages[tasks]
        sizes = np.where(
            is_forward,
            self._of_stages("forward_working_bytes")[stages],
            self._of_stages("backward_working_bytes")[stages],
        )
        return [(self.starts_s[tasks], self.ends_s[tasks], sizes)]

    def _sent(self, tasks: slice) -> Lives:
        sends = self.sends[tasks]
        chosen = sends >= 0
        values = sends[chosen]
        return self.ends_s[tasks][chosen], self.arrived_s[values], self.value_sizes[values]

    def _received(self, tasks: slice) -> Lives:
        chosen = tasks.start + np.flatnonzero(self.values.used[tasks] >= 0)
        values = self.values.used[chosen]
        made_s = self.ends_s[self.values.maker[values]]
        there_s = np.where(self.values.crosses[values], self.received_s[values], made_s)
        gone_s = np.where(self.order.kinds[chosen] == FORWARD, self.starts_s[chosen], self.ends_s[chosen])
        return there_s, gone_s, self.value_sizes[values]

    def _of_stages(self, name: str) -> np.ndarray:
        return np.asarray([getattr(cost, name) for cost in self.costs], dtype=np.int64)
