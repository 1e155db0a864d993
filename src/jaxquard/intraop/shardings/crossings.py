"""Finds what crosses the borders of a segment, and copies it there, once, to be resharded.

    b = add a c                    b = add a c                  segment 0
    d = norm b                     e = copy b                   held as segment 1 wants it
    f = add b d                    d = norm e                   segment 1
                            =>     f = add e d

Without the copy every use of a value would be resharded by itself, where and how the compiler likes. What goes further
than next door is copied at every border on its way.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.boundary_values import Side, Traveller
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.step.phases import Phase
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, make_jaxpr, rename, size_bytes, splice_traced, variables

# The segments to which a value comes, one after the other, each in a phase, and how it is wanted there.
Way = Sequence[tuple[Side, PartitionSpec]]
# The copy of a value that a segment has in a phase.
Copies = Mapping[tuple[Side, Var], Var]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What crosses the borders of a segment.

    Attributes:
        positions: of the segment's equations.
        inputs, outputs: all values that cross.
        arriving, leaving: of these, what travels: activations and their gradients.
        entry: the largest activation that comes in; None for a segment that only data enters.
        exit: the largest activation that goes out to a later segment.
    """

    positions: tuple[int, ...] = field(repr=False)
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    arriving: tuple[Traveller, ...]
    leaving: tuple[Traveller, ...]
    entry: Var | None
    exit: Var | None


def find_crossing(analysis: Analysis, segment: Segment) -> Crossing:
    """What crosses the borders of a segment; found once."""
    key = ("crossing", segment)
    if key not in analysis.memo:
        analysis.memo[key] = _find_crossing(analysis, segment)
    return analysis.memo[key]


def _find_crossing(analysis: Analysis, segment: Segment) -> Crossing:
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
    number = segment.number
    arriving = tuple(found for found in analysis.travellers.values() if any(place == number for place, _ in found.uses))
    leaving = tuple(found for found in analysis.travellers.values() if found.maker == number)
    return Crossing(
        positions=positions,
        inputs=inputs,
        outputs=outputs,
        arriving=arriving,
        leaving=leaving,
        entry=_largest(found.var for found in arriving if (number, Phase.FORWARD) in found.uses),
        exit=_largest(found.var for found in leaving if any(phase is Phase.FORWARD for _, phase in found.uses)),
    )


def copy_at_borders(
    jaxpr: Jaxpr, *, sides: Sequence[Side], stops: Mapping[tuple[Side, Var], Sequence[Side]]
) -> tuple[Jaxpr, Copies]:
    """Gives segments their own copies of values.

    Args:
        sides: for each equation, its segment and phase.
        stops: for a segment in a phase and a value, where it comes by; with the same stop, copies are shared.

    Returns:
        The jaxpr, and the copies; those that no equation uses are not made.
    """
    copies: dict[tuple[Side, Var], Var] = {}
    equations: list[Equation] = []
    for equation, side in zip(jaxpr.eqns, sides, strict=True):
        renamed = {}
        for var in variables(equation.invars):
            for stop in stops.get((side, var), ()):
                if (stop, var) not in copies:
                    made, (copies[stop, var],) = splice_traced(_traced_copy(var.aval), [renamed.get(var, var)])
                    equations.extend(made)
                renamed[var] = copies[stop, var]
        equations.append(rename(equation, renamed))
    return make_jaxpr(jaxpr.invars, equations, jaxpr.outvars), copies


@functools.lru_cache(maxsize=1024)
def _traced_copy(aval: Any) -> Any:
    return jax.make_jaxpr(lambda value: [jnp.copy(value)])(jax.ShapeDtypeStruct(aval.shape, aval.dtype))


def _largest(values: Iterable[Var]) -> Var | None:
    return max(values, key=lambda var: size_bytes(var.aval), default=None)
