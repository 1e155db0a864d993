"""The phases of a step's equations: forward, backward or update of the state; and the variables with the same value.

JAX records in every equation the transforms that made it: a transposed one is backward. What depends on the backward
and is not transposed itself is the update. A checkpoint's backward recomputes parts of the forward; they stand for the
same values, and so do copies behind barriers (`same_values`).
"""

import enum
from collections.abc import Collection, Sequence

from jaxquard.ir.jaxpr_tools import Equation, Var, is_var, operation_key, variables
from jaxquard.ir.open_checkpoints import is_transposed

# The outputs of these primitives are the inputs, one for one.
COPIES = ("optimization_barrier", "name", "copy", "stop_gradient")


def depend_on(equations: Sequence[Equation], sources: Collection[Var]) -> set[Var]:
    """Returns the sources and all that is computed from them; of several copies, each from its own."""
    found = set(sources)
    for equation in equations:
        if equation.primitive.name in COPIES and len(equation.invars) == len(equation.outvars):
            pairs = zip(equation.invars, equation.outvars, strict=True)
            found.update(var for atom, var in pairs if is_var(atom) and atom in found)
        elif not found.isdisjoint(variables(equation.invars)):
            found.update(equation.outvars)
    return found


class EquationPhase(enum.Enum):
    """The part of a step that an equation belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


def find_phases(equations: Sequence[Equation]) -> list[EquationPhase]:
    """Returns the phase of every equation."""
    late: set[Var] = set()
    phases = []
    for equation in equations:
        is_late = not late.isdisjoint(variables(equation.invars))
        if is_transposed(equation) or (is_late and equation.primitive.name in COPIES):
            phase = EquationPhase.BACKWARD
        elif not is_late:
            phase = EquationPhase.FORWARD
        else:
            phase = EquationPhase.UPDATE
        if phase is not EquationPhase.FORWARD:
            late.update(equation.outvars)
        phases.append(phase)
    return phases


def same_values(equations: Sequence[Equation]) -> dict[Var, Var]:
    """Returns the first variable that each later variable equals."""
    first: dict[Var, Var] = {}
    known: dict[object, Sequence[Var]] = {}
    for equation in equations:
        inputs = [first.get(atom, atom) if is_var(atom) else atom for atom in equation.invars]
        if equation.primitive.name in COPIES and len(inputs) == len(equation.outvars) and all(map(is_var, inputs)):
            first.update(zip(equation.outvars, inputs, strict=True))
            continue
        if equation.effects:
            continue
        seen = known.setdefault(operation_key(equation.replace(invars=inputs)), equation.outvars)
        if seen is not equation.outvars:
            first.update((var, other) for var, other in zip(equation.outvars, seen, strict=True) if var is not other)
    return first
