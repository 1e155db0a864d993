"""Finds the inputs of each task of a loop's body, also those of values that it recomputes."""

from dataclasses import dataclass

from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, definitions, variables
from jaxquard.pipeline.loop import Loop, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyUses:
    """For each place of a body, in order of first appearance: its equations and the inputs that they need.

    Attributes:
        equations: positions of the equations that a place runs, recomputed ones included.
        inputs: inputs of the body that a place uses.
    """

    equations: dict[Place, tuple[int, ...]]
    inputs: dict[Place, tuple[Var, ...]]


def body_uses(body: Jaxpr, loop: Loop) -> BodyUses:
    """Returns the uses of a body whose stages are assigned."""
    assert loop.places is not None
    definition = definitions(body.eqns)
    wanted: dict[Place, list[Var]] = {}
    own: dict[Place, set[int]] = {}
    for position, (equation, place) in enumerate(zip(body.eqns, loop.places, strict=True)):
        if place is not None:
            own.setdefault(place, set()).add(position)
            wanted.setdefault(place, []).extend(variables(equation.invars))
    for atom, place in zip(body.outvars, loop.result_places, strict=True):
        own.setdefault(place, set())
        wanted.setdefault(place, []).extend(variables([atom]))
    known_inputs = set(body.invars)
    equations, inputs = {}, {}
    for place, atoms in wanted.items():
        recomputed = recomputed_for(body.eqns, loop, definition, atoms)
        equations[place] = tuple(sorted(own[place] | recomputed))
        used = dict.fromkeys(atoms)
        used.update(dict.fromkeys(var for p in recomputed for var in variables(body.eqns[p].invars)))
        inputs[place] = tuple(var for var in used if var in known_inputs)
    return BodyUses(equations=equations, inputs=inputs)


def recomputed_for(equations: list[Equation], loop: Loop, definition: dict[Var, int], atoms: list[Var]) -> set[int]:
    """Positions of the equations without a place that some atoms need."""
    assert loop.places is not None
    found: set[int] = set()
    waiting = list(atoms)
    while waiting:
        position = definition.get(waiting.pop())
        if position is not None and loop.places[position] is None and position not in found:
            found.add(position)
            waiting.extend(variables(equations[position].invars))
    return found
