"""Finds what crosses the borders between segments, and reshards it there, once.

    b = add a c                    b = add a c                  segment 0
    d = norm b                     e = copy b                   held as segment 1 wants it
    f = add b d                    d = norm e                   segment 1
                            =>     f = add e d

Without the copy every use of a value would be resharded by itself, where and how the compiler likes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.phases import Phase
from jaxquard.intraop.segments import Segment
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, is_var, make_jaxpr, rename, size_bytes, splice, variables

# A segment in one of its phases.
Side = tuple[int, Phase]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What crosses the borders of a segment.

    Attributes:
        positions: of the segment's equations.
        inputs, outputs: all values that cross.
        entry: the largest forward value that comes in; None for a segment that only data enters.
        exit: the largest forward value that goes out to a later segment.
        entry_gradient, exit_gradient: their gradients, which go out and come in.
    """

    positions: tuple[int, ...] = field(repr=False)
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    entry: Var | None
    exit: Var | None
    entry_gradient: Var | None
    exit_gradient: Var | None


def find_crossing(analysis: Analysis, segment: Segment) -> Crossing:
    """What crosses the borders of a segment."""
    graph = analysis.graph
    owned = set(segment.blocks)
    positions = tuple(position for position, owner in enumerate(analysis.owners) if owner in owned)
    inside = set(positions)
    made = {var for position in positions for var in graph.equations[position].outvars}
    used = dict.fromkeys(var for position in positions for var in variables(graph.equations[position].invars))
    inputs = tuple(var for var in used if var not in made)
    results = set(graph.outputs)
    outputs = tuple(
        var
        for position in positions
        for var in graph.equations[position].outvars
        if var in results or any(user not in inside for user in graph.users.get(var, ()))
    )
    phase = {var: _phase(analysis, var) for var in (*inputs, *outputs)}
    first = min(segment.blocks)
    entry = _largest(var for var in inputs if phase[var] is Phase.FORWARD and _owner(analysis, var) < first)
    leaving = [var for var in outputs if phase[var] is Phase.FORWARD]
    exit_ = _largest(var for var in leaving if _is_used_forward(analysis, var, inside))
    return Crossing(
        positions=positions,
        inputs=inputs,
        outputs=outputs,
        entry=entry,
        exit=exit_,
        entry_gradient=_like(entry, (var for var in outputs if phase[var] is Phase.BACKWARD)),
        exit_gradient=_like(exit_, (var for var in inputs if phase[var] is Phase.BACKWARD)),
    )


def reshard_at_borders(
    jaxpr: Jaxpr, *, sides: Sequence[Side], wanted: Mapping[tuple[Side, Var], PartitionSpec]
) -> tuple[Jaxpr, dict[Var, PartitionSpec]]:
    """Gives segments their own copies of values, forward and backward apart.

    Args:
        sides: for each equation, its segment and phase.
        wanted: for a segment in a phase and a value, how it is wanted there.

    Returns:
        The jaxpr, and how the copies are to be held.
    """
    copies: dict[tuple[Side, Var], Var] = {}
    held: dict[Var, PartitionSpec] = {}
    equations: list[Equation] = []
    for equation, side in zip(jaxpr.eqns, sides, strict=True):
        renamed = {}
        for var in variables(equation.invars):
            key = (side, var)
            if key in wanted and key not in copies:
                made, (copies[key],) = splice(lambda value: [jnp.copy(value)], [var])
                equations.extend(made)
                held[copies[key]] = wanted[key]
            if key in copies:
                renamed[var] = copies[key]
        equations.append(rename(equation, renamed))
    return make_jaxpr(jaxpr.invars, equations, jaxpr.outvars), held


def _phase(analysis: Analysis, var: Var) -> Phase | None:
    position = analysis.graph.definitions.get(var)
    return None if position is None else analysis.graph.phases[position]


def _owner(analysis: Analysis, var: Var) -> int:
    return analysis.owners[analysis.graph.definitions[var]]


def _is_used_forward(analysis: Analysis, var: Var, inside: set[int]) -> bool:
    graph = analysis.graph
    return any(user not in inside and graph.phases[user] is Phase.FORWARD for user in graph.users.get(var, ()))


def _largest(values: Iterable[Var]) -> Var | None:
    found = [var for var in values if is_var(var) and var.aval.shape]
    return max(found, key=lambda var: size_bytes(var.aval)) if found else None


def _like(value: Var | None, candidates: Iterable[Var]) -> Var | None:
    """The gradient of a value among values that cross: the one of its shape."""
    if value is None:
        return None
    return next((var for var in candidates if var.aval.shape == value.aval.shape), None)
