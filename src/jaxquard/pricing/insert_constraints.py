"""Holds inner values of a jaxpr to shardings.

    b = dot_general a w        =>      b = dot_general a w
    c = exp b                          d = sharding_constraint[P('x')] b
                                       c = exp d

Every use after the equation, and the outputs, take the held value. Beside what is asked for, the inputs of a few
convolutions are held (`gather_grouped`), with which the numbers would else be wrong.
"""

from collections.abc import Sequence
from typing import Any

from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard.ir.jaxpr_tools import close, make_jaxpr, rename, substitute
from jaxquard.pricing.gather_grouped import gather_grouped
from jaxquard.pricing.hold_value import hold_value


def insert_constraints(
    closed: core.ClosedJaxpr, constraints: Sequence[tuple[int, int, PartitionSpec]], *, mesh: Mesh
) -> core.ClosedJaxpr:
    """The jaxpr with constraints, given as (equation, output, spec), on a mesh."""
    return gather_grouped(_insert(closed, constraints, mesh) if constraints else closed, mesh=mesh)


def _insert(
    closed: core.ClosedJaxpr, constraints: Sequence[tuple[int, int, PartitionSpec]], mesh: Mesh
) -> core.ClosedJaxpr:
    opened: Any = closed
    jaxpr = opened.jaxpr
    wanted: dict[int, list[tuple[int, PartitionSpec]]] = {}
    for equation, output, spec in constraints:
        wanted.setdefault(equation, []).append((output, spec))
    renamed: dict[Any, Any] = {}
    equations: list[Any] = []
    for position, equation in enumerate(jaxpr.eqns):
        equations.append(rename(equation, renamed))
        for output, spec in wanted.get(position, ()):
            var = equation.outvars[output]
            held, renamed[var] = hold_value(substitute(var, renamed), NamedSharding(mesh, spec))
            equations += held
    outputs = [substitute(atom, renamed) for atom in jaxpr.outvars]
    inner = make_jaxpr([*jaxpr.constvars, *jaxpr.invars], equations, outputs)
    return _with_constants(inner, opened.consts)


def _with_constants(jaxpr: Any, constants: Sequence[Any]) -> core.ClosedJaxpr:
    """Binds the first inputs, which were the jaxpr's constants."""
    build: Any = core.Jaxpr
    count = len(constants)
    names = core.DebugInfo("jaxquard", "step", ("",) * (len(jaxpr.invars) - count), ("",) * len(jaxpr.outvars))
    bound = build(jaxpr.invars[:count], jaxpr.invars[count:], jaxpr.outvars, jaxpr.eqns, jaxpr.effects, names)
    return close(bound, constants)
