"""Bytes of weights, gradients and the optimizer's state that a segment has on each device all the time.

    weights      state that the forward or the backward uses, as it is stored, and again as it is used where that is
                 another layout (ZeRO) or another type (a cast that the loop over microbatches does not repeat)
    gradients    sums over microbatches, in the layout in which weights are used: they are reduced after the last one;
                 in the dtype of the sums, which may have more bits than the weights; under ZeRO 2 they are reduced with
                 every microbatch, and kept in the layout of the optimizer's state
    optimizer    all other state, as it is stored

The optimizer's state belongs to the segment that updates it. A weight that several segments use is in each of them.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import jax.numpy as jnp

from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.ir.jaxpr_tools import Var, is_var
from jaxquard.ir.operations import REARRANGING
from jaxquard.planner.prices.step_parts import StepPart
from jaxquard.pricing.roofline.prepare import NO_VALUE, PreparedJaxpr
from jaxquard.pricing.roofline.program_cost import ProgramCost
from jaxquard.pricing.roofline.value_dims import Dims, num_shards


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes on each device, all the time.

    Attributes:
        scattered_bytes: of gradients in the layout in which the update takes them.
    """

    weight_bytes: int = 0
    gradient_bytes: int = 0
    scattered_bytes: int = 0
    optimizer_bytes: int = 0


class StateOwners:
    """The state of a step: which of it is weights, and the segment that updates each.

    Args:
        update: the positions of the step's equations that belong to the update.
    """

    def __init__(self, analysis: Analysis, *, update: Collection[int]) -> None:
        graph, step = analysis.graph, analysis.step
        of_block = analysis.segment_of_block()
        self._segments = [of_block[owner] for owner in analysis.owners]
        self.owners: dict[Var, int] = {}
        self.weights: set[Var] = set()
        for var, result in zip(step.jaxpr.invars, step.result_of_input, strict=True):
            if result is None:
                continue
            used = graph.users.get(var, ())
            if any(position not in update for position in used):
                self.weights.add(var)
            out = step.jaxpr.outvars[result]
            made = graph.definitions.get(out) if is_var(out) else None
            owner = next(iter(used), None) if made is None else made
            if owner is not None:
                self.owners[var] = self._segments[owner]

    def of_segment(self, segment: Segment, inputs: Collection[Var]) -> Iterator[tuple[Var, bool]]:
        """Yields the state that a segment holds, each with whether it is a weight."""
        for var, owner in self.owners.items():
            is_weight = var in self.weights
            if var in inputs and (is_weight or owner == segment.number):
                yield var, is_weight


def state_bytes(
    cost: ProgramCost,
    parts: Sequence[StepPart],
    *,
    state: Sequence[tuple[Var, bool]],
    used: Sequence[Dims],
    sizes: Sequence[int],
) -> StateBytes:
    """Returns the bytes of a segment's state.

    Args:
        cost: of its program, whose inputs have the layouts in which state is stored.
        parts: of the program's equations.
        state: of the segment, each with whether it is a weight.
        used: for each of those, the layout in which it is used.
        sizes: of the mesh axes.
    """
    weights = gradients = scattered = optimizer = 0
    sums_bytes = _sums_bytes(cost.prepared, cost.prepared.sizes_bytes)
    stored_bytes = _sums_bytes(cost.prepared, cost.sizes_bytes)
    for (var, is_weight), dims in zip(state, used, strict=True):
        number = cost.prepared.numbers[var]
        if not is_weight:
            optimizer += cost.sizes_bytes[number]
            continue
        weights += cost.sizes_bytes[number]
        if jnp.issubdtype(var.aval.dtype, jnp.inexact):
            whole_bytes = sums_bytes.get(var.aval.shape, cost.prepared.sizes_bytes[number])
            used_bytes = -(-whole_bytes // num_shards(dims, sizes))
            gradients += used_bytes
            scattered += min(used_bytes, stored_bytes.get(var.aval.shape, used_bytes))
    hoisted = sum(cost.sizes_bytes[number] for number in _hoisted(cost.prepared, parts))
    return StateBytes(
        weight_bytes=weights + hoisted,
        gradient_bytes=gradients,
        scattered_bytes=scattered,
        optimizer_bytes=optimizer,
    )


def _sums_bytes(prepared: PreparedJaxpr, sizes_bytes: Sequence[int]) -> dict[tuple[int, ...], int]:
    """Returns the bytes of sums over microbatches, by their shape: the largest of those that have it.

    Args:
        sizes_bytes: of each value, whole or on one device.
    """
    found: dict[tuple[int, ...], int] = {}
    for equation in prepared.equations:
        if equation.name == "accumulated":
            (number,), (source,) = equation.outputs, equation.inputs
            shape = prepared.shapes[number]
            # Values that are stacked are no sums.
            if source != NO_VALUE and prepared.shapes[source] == shape:
                found[shape] = max(found.get(shape, 0), sizes_bytes[number])
    return found


def _hoisted(prepared: PreparedJaxpr, parts: Sequence[StepPart]) -> Iterator[int]:
    """Yields the values of invariant equations that microbatches use, and that are not only views of others."""
    seen: set[tuple[int, ...]] = set()
    for position, equation in enumerate(prepared.equations):
        if parts[position] is not StepPart.INVARIANT:
            continue
        is_copy = equation.name in ("copy", "copy_p", "sharding_constraint")
        if equation.name in REARRANGING and not is_copy:
            continue
        if is_copy and equation.inputs in seen:
            continue
        for number in equation.outputs:
            if any(not parts[user].is_once for user in prepared.users[number]):
                seen.add(equation.inputs)
                yield number
