"""Bytes of temporary values while one task of a segment runs: values that no other task uses."""

from collections.abc import Callable, Collection, Sequence

from jaxquard.planner.prices.step_parts import StepPart
from jaxquard.pricing.roofline.prepare import NO_VALUE
from jaxquard.pricing.roofline.program_cost import ProgramCost, gathered_bytes


def working_bytes(cost: ProgramCost, parts: Sequence[StepPart], *, kept: Collection[int]) -> int:
    """Returns the peak of temporary values in the forward or in the backward, whichever is higher.

    Args:
        parts: of the program's equations.
        kept: values that are counted elsewhere.
    """
    counted = set(kept) | {number for number in cost.prepared.outputs if number != NO_VALUE}
    return max(
        _peak(cost, parts, lambda part: part is StepPart.FORWARD, counted),
        _peak(cost, parts, lambda part: part.is_backward, counted),
    )


def _peak(
    cost: ProgramCost, parts: Sequence[StepPart], is_here: Callable[[StepPart], bool], counted: Collection[int]
) -> int:
    kernels = [kernel for kernel in cost.fused if is_here(parts[kernel.positions[0]])]
    last: dict[int, int] = {}
    for place, kernel in enumerate(kernels):
        last.update((number, place) for number in kernel.written if number not in counted)
        for chain in kernel.read:
            if chain[-1] in last:
                last[chain[-1]] = place
    ends: dict[int, list[int]] = {}
    for number, place in last.items():
        ends.setdefault(place, []).append(number)
    gathered = gathered_bytes(cost.collectives)
    live = peak = 0
    for place, kernel in enumerate(kernels):
        live += sum(cost.sizes_bytes[number] for number in kernel.written if number in last)
        peak = max(peak, live + round(sum(gathered.get(position, 0.0) for position in kernel.positions)))
        live -= sum(cost.sizes_bytes[number] for number in ends.get(place, ()))
    return peak
