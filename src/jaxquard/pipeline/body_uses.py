"""Finds what each task of a loop's body uses: inputs, also those of values that it recomputes, and carried values."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryUse:
    """A carried value with the place that makes the next one, and the places that read it.

    Attributes:
        var: the input of the body.
        result: which result of the loop it is.
    """

    name: str
    var: Var
    result: int
    writer: Place
    readers: frozenset[Place]


def find_carry_uses(equation: Equation) -> list[CarryUse]:
    """Returns the carried values of a loop whose carries are placed; of several copies, a stage reads its own."""
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    targets = loop.targets or range(len(body.outvars))
    writers: dict[int, dict[Place, int]] = {}
    for target, place in zip(targets, loop.result_places, strict=True):
        carried = loop.reductions[target].carried
        if carried is not None:
            writers.setdefault(carried, {})[place] = target
    uses = body_uses(body, loop).inputs
    found = []
    for carried, of_place in sorted(writers.items()):
        var = body.invars[loop.num_constants + carried]
        readers = [place for place, inputs in uses.items() if var in inputs]
        own = {place.stage: place for place in of_place}
        first = next(iter(of_place))
        for writer, target in of_place.items():
            reading = frozenset(reader for reader in readers if own.get(reader.stage, first) == writer)
            found.append(
                CarryUse(name=loop.carry_names[carried], var=var, result=target, writer=writer, readers=reading)
            )
    return found
