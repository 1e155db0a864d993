"""The costs of one stage: the seconds of its phases, the bytes that it sends and keeps, and its work around the loop.

All of it is of one chip of the stage's actor. The chips of an actor, and the data-parallel replicas of all actors, do
the same at the same time: one of each is played, and collectives among them are part of these seconds.
"""

import math
from dataclasses import dataclass, fields

from jaxquard.errors import ScheduleError


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """Seconds and bytes of a stage, of one chip.

    A whole backward takes the times of both gradients. The gradient that goes back to a stage has the bytes of its
    output.

    Attributes:
        output_bytes: of what goes to the next stage; with them a transfer is priced.
        weight_bytes: of weights and optimizer state, which are there all the time.
        gradient_bytes: of the sums over microbatches, there all the time as well.
        activation_bytes: kept for one microbatch from its forward to its backward, the stage's input included.
        deferred_bytes: of those, kept from the input gradient to the weight gradient; all if None.
        forward_working_bytes: of temporary values while a forward runs.
        backward_working_bytes: the same of a backward, or of either gradient.
        gather_s: collectives before the loop, such as the gather of sharded weights.
        gradient_sum_s: the sum of gradients over data-parallel replicas, after the stage's last backward.
        update_s: the optimizer.

    Example:
        >>> cost = jq.simulate.StageCost(forward_s=1e-3, input_gradient_s=1e-3, weight_gradient_s=1e-3)
        >>> cost.backward_s
        0.002
    """

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    output_bytes: int = 0
    weight_bytes: int = 0
    gradient_bytes: int = 0
    activation_bytes: int = 0
    deferred_bytes: int | None = None
    forward_working_bytes: int = 0
    backward_working_bytes: int = 0
    gather_s: float = 0.0
    gradient_sum_s: float = 0.0
    update_s: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not 0 <= value < math.inf:
                kind = "a time" if field.name.endswith("_s") else "a number of bytes"
                raise ScheduleError(f"StageCost needs {field.name} to be 0 or more, but it is {value}. Give {kind}.")

    @property
    def backward_s(self) -> float:
        """The seconds of a whole backward."""
        return self.input_gradient_s + self.weight_gradient_s
