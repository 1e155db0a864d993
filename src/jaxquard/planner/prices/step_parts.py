"""The part of a step that an equation of a segment's program runs in, when the step runs as a pipeline.

    invariant          depends on state alone: hoisted out of the loop over microbatches, once a step
    forward            of each microbatch; but not the light operations that one part of the backward alone needs, such
                       as derivatives of activations (`pipeline.passes.assign_stages`)
    input gradient     of each microbatch; what gradients that leave to segments before depend on
    weight gradient    of each microbatch; the rest of the backward
    update             once a step

Sums of weight gradients over devices wait until the loop has ended (`pipeline.passes.keep_sums_local`), where only
linear operations stand between the sum and the update.
"""

import enum
from collections.abc import Collection, Sequence

from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.interfaces import SegmentInterface
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, users, variables
from jaxquard.ir.operations import is_light, is_linear_in_first, is_sum


class StepPart(enum.Enum):
    """The part of a pipelined step that an equation runs in."""

    INVARIANT = "invariant"
    FORWARD = "forward"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"
    UPDATE = "update"

    @property
    def is_backward(self) -> bool:
        return self in (StepPart.INPUT_GRADIENT, StepPart.WEIGHT_GRADIENT)

    @property
    def is_once(self) -> bool:
        """True for what runs once a step."""
        return self in (StepPart.INVARIANT, StepPart.UPDATE)


_OF_PHASE = {
    EquationPhase.FORWARD: StepPart.FORWARD,
    EquationPhase.BACKWARD: StepPart.WEIGHT_GRADIENT,
    EquationPhase.UPDATE: StepPart.UPDATE,
}
# Sums pass through these unchanged, beside what is linear in its first operand.
_ADDITIVE = frozenset(
    "reduce_sum broadcast_in_dim transpose reshape squeeze expand_dims concatenate pad copy_p".split()
)


def find_update(graph: StepGraph) -> frozenset[int]:
    """Returns the positions of the update: with what depends on no data and nothing but the update uses.

    A momentum that is multiplied by its decay does not depend on the backward, but belongs to the update.
    """
    late: set[int] = set()
    for position in reversed(range(len(graph.equations))):
        outputs = graph.equations[position].outvars
        consumers = [user for var in outputs for user in graph.users.get(var, ())]
        is_update = graph.phases[position] is EquationPhase.UPDATE
        if is_update or (graph.data_vars.isdisjoint(outputs) and late.issuperset(consumers)):
            late.add(position)
    return frozenset(late)


def find_parts(
    jaxpr: Jaxpr, analysis: Analysis, interface: SegmentInterface, *, update: Collection[int]
) -> tuple[StepPart, ...]:
    """Returns the part of every equation of a segment's program.

    Copies that stand at the segment's boundaries, and the equations of 2D products, run with their first user.

    Args:
        update: the positions of the step's equations that belong to the update (`find_update`).
    """
    graph = analysis.graph
    parts: list[StepPart | None] = []
    for equation in jaxpr.eqns:
        position = next((graph.definitions[var] for var in equation.outvars if var in graph.definitions), None)
        phase = None if position is None else graph.phases[position]
        parts.append(None if phase is None else StepPart.UPDATE if position in update else _OF_PHASE[phase])
    _follow_users(jaxpr, parts)
    found = [part or StepPart.FORWARD for part in parts]
    _find_input_gradients(jaxpr, found, _leaving_gradients(analysis, interface))
    _defer_light(jaxpr, found)
    _find_invariants(jaxpr, found, graph.state)
    return tuple(found)


def find_late_sums(jaxpr: Jaxpr, parts: Sequence[StepPart]) -> frozenset[int]:
    """Returns the equations of weight gradients whose sums over devices can wait for the end of the step."""
    used_by = users(jaxpr.eqns)
    results = set(variables(jaxpr.outvars))
    late: set[int] = set()
    for position in reversed(range(len(jaxpr.eqns))):
        if parts[position] is not StepPart.WEIGHT_GRADIENT:
            continue
        consumers = [user for var in jaxpr.eqns[position].outvars for user in used_by.get(var, ())]
        is_used = bool(consumers) or not results.isdisjoint(jaxpr.eqns[position].outvars)
        if is_used and all(_passes_sums(jaxpr.eqns[user], parts[user], user in late) for user in consumers):
            late.add(position)
    return frozenset(late)


def _passes_sums(equation: Equation, part: StepPart, is_late: bool) -> bool:
    if part is StepPart.UPDATE:
        return True
    is_linear = is_linear_in_first(equation) or is_sum(equation) or equation.primitive.name in _ADDITIVE
    return is_late and is_linear


def _follow_users(jaxpr: Jaxpr, parts: list[StepPart | None]) -> None:
    """Gives equations without a part the earliest one of their users."""
    order = list(StepPart)
    used_by = users(jaxpr.eqns)
    for position in reversed(range(len(parts))):
        if parts[position] is None:
            found = [parts[user] for var in jaxpr.eqns[position].outvars for user in used_by.get(var, ())]
            known = [part for part in found if part is not None]
            parts[position] = min(known, key=order.index, default=None)


def _leaving_gradients(analysis: Analysis, interface: SegmentInterface) -> set[Var]:
    graph = analysis.graph
    return {
        found.var
        for found in interface.leaving
        if graph.phases[graph.definitions[found.var]] is EquationPhase.BACKWARD
        and any(segment < found.producer for segment, _ in found.uses)
    }


def _find_input_gradients(jaxpr: Jaxpr, parts: list[StepPart], leaving: set[Var]) -> None:
    needed = set(leaving)
    for position in reversed(range(len(parts))):
        equation = jaxpr.eqns[position]
        if parts[position] is StepPart.WEIGHT_GRADIENT and not needed.isdisjoint(equation.outvars):
            parts[position] = StepPart.INPUT_GRADIENT
            needed.update(variables(equation.invars))


def _defer_light(jaxpr: Jaxpr, parts: list[StepPart]) -> None:
    """Moves light operations of the forward to the one part of the backward that needs them."""
    used_by, results = users(jaxpr.eqns), set(variables(jaxpr.outvars))
    for position in reversed(range(len(parts))):
        equation = jaxpr.eqns[position]
        if parts[position] is not StepPart.FORWARD or equation.effects or not is_light(equation):
            continue
        needing = {parts[user] for var in equation.outvars for user in used_by.get(var, ())}
        if len(needing) == 1 and results.isdisjoint(equation.outvars) and next(iter(needing)).is_backward:
            parts[position] = needing.pop()


def _find_invariants(jaxpr: Jaxpr, parts: list[StepPart], state: set[Var]) -> None:
    """Finds equations that depend on state and on nothing else."""
    invariant = state & set(jaxpr.invars)
    for position, equation in enumerate(jaxpr.eqns):
        inputs = variables(equation.invars)
        is_in_loop = parts[position] is not StepPart.UPDATE
        if is_in_loop and inputs and not equation.effects and invariant.issuperset(inputs):
            parts[position] = StepPart.INVARIANT
            invariant.update(equation.outvars)
