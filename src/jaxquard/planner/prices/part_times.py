"""Splits the cost of a segment's program into the parts of a pipelined step."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from jaxquard.planner.prices.step_parts import StepPart
from jaxquard.pricing.price import Price
from jaxquard.pricing.roofline.prepare import PreparedJaxpr
from jaxquard.pricing.roofline.program_cost import CollectiveCost, ProgramCost


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """Seconds of a segment's program, by what they go to.

    Attributes:
        compute_s: of kernels, by part.
        communication_s: of collectives, by part.
        gradient_sum_s: of sums of gradients and of gathers of state, once a step; in neither of the others.
        late_sum_s: the part of that in sums of gradients that wait for the last microbatch.
    """

    compute_s: Mapping[StepPart, float] = field(default_factory=dict)
    communication_s: Mapping[StepPart, float] = field(default_factory=dict)
    gradient_sum_s: float = 0.0
    late_sum_s: float = 0.0

    def time_s(self, part: StepPart) -> float:
        """Returns the seconds of a part, its collectives among them."""
        return self.compute_s.get(part, 0.0) + self.communication_s.get(part, 0.0)

    @property
    def step_s(self) -> float:
        """The seconds of all that runs once a step."""
        return self.gradient_sum_s + sum(self.time_s(part) for part in StepPart if part.is_once)

    @property
    def exposed_s(self) -> float:
        """The seconds of one microbatch's collectives."""
        return sum(time_s for part, time_s in self.communication_s.items() if not part.is_once)

    def scaled(self, compute: float, communication: float) -> "PartTimes":
        """Returns the times multiplied by factors."""
        return PartTimes(
            compute_s={part: time_s * compute for part, time_s in self.compute_s.items()},
            communication_s={part: time_s * communication for part, time_s in self.communication_s.items()},
            gradient_sum_s=self.gradient_sum_s * communication,
            late_sum_s=self.late_sum_s * communication,
        )


def split_times(cost: ProgramCost, parts: Sequence[StepPart], late_sums: Collection[int]) -> PartTimes:
    """Returns the seconds of each part of a program.

    Args:
        parts: of each equation.
        late_sums: the equations whose sums are made once a step, in the dtype in which microbatches are summed.
    """
    compute: dict[StepPart, float] = {}
    for kernel in cost.kernels:
        part = parts[kernel.positions[0]]
        compute[part] = compute.get(part, 0.0) + kernel.time_s
    communication: dict[StepPart, float] = {}
    once_s = late_s = 0.0
    for found in cost.collectives:
        part = StepPart.UPDATE if found.position == len(parts) else parts[found.position]
        is_late = found.is_sum and found.position in late_sums
        if is_late:
            late_s += found.time_s * _widening(cost.prepared, found.value)
        elif part.is_once:
            once_s += found.time_s
        else:
            communication[part] = communication.get(part, 0.0) + found.time_s
    repeated_s = sum(found.time_s for found in _repeated_gathers(cost, parts))
    return PartTimes(
        compute_s=compute,
        communication_s=communication,
        gradient_sum_s=once_s + late_s - repeated_s,
        late_sum_s=late_s,
    )


def scale_to_price(times: PartTimes, cost: ProgramCost, price: Price) -> PartTimes:
    """Returns the times with the proportions of one pricer and the sum of another.

    Where the other says how long its collectives take, they are scaled by themselves.
    """
    compute_s, communication_s = cost.compute_s, cost.communication_s
    has_parts = price.compute_s is not None and price.communication_s is not None
    if has_parts and communication_s > 0 and compute_s > 0:
        assert price.compute_s is not None
        assert price.communication_s is not None
        return times.scaled(price.compute_s / compute_s, price.communication_s / communication_s)
    factor = price.time_s / (compute_s + communication_s) if compute_s + communication_s > 0 else 1.0
    return times.scaled(factor, factor)


def _widening(prepared: PreparedJaxpr, number: int) -> float:
    """Returns the bytes of a sum over microbatches over those of one, which is added to it through single users."""
    while len(prepared.users[number]) == 1:
        equation = prepared.equations[prepared.users[number][0]]
        if equation.name == "accumulated":
            return prepared.sizes_bytes[equation.outputs[0]] / max(1, prepared.sizes_bytes[number])
        if len(equation.outputs) != 1:
            break
        number = equation.outputs[0]
    return 1.0


def _repeated_gathers(cost: ProgramCost, parts: Sequence[StepPart]) -> list[CollectiveCost]:
    """Returns the gathers of state that another equation of the program has as well.

    A program alone gathers state for its forward and again for its backward; a loop over microbatches takes what was
    gathered in front of it.
    """
    seen: set[object] = set()
    repeated = []
    for found in cost.collectives:
        if found.position < len(parts) and parts[found.position] is StepPart.INVARIANT and not found.is_sum:
            equation = cost.prepared.equations[found.position]
            key = equation.inputs, found.collective
            if key in seen:
                repeated.append(found)
            seen.add(key)
    return repeated
