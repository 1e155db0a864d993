"""Holds inner values of a jaxpr to shardings.

    b = dot_general a w        =>      b = dot_general a w
    c = exp b                          d = sharding_constraint[P('x')] b
                                       c = exp d

Every use after the equation, and the outputs, take the held value.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard.ir.jaxpr_tools import close, make_jaxpr, rename, splice_traced, substitute


def insert_constraints(
    closed: core.ClosedJaxpr, constraints: Sequence[tuple[int, int, PartitionSpec]], *, mesh: Mesh
) -> core.ClosedJaxpr:
    """The jaxpr with constraints, given as (equation, output, spec), on a mesh."""
    if not constraints:
        return closed
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
            traced = _hold(var.aval.shape, var.aval.dtype, NamedSharding(mesh, spec))
            held, (result,) = splice_traced(traced, [substitute(var, renamed)])
            equations += held
            renamed[var] = result
    outputs = [substitute(atom, renamed) for atom in jaxpr.outvars]
    inner = make_jaxpr([*jaxpr.constvars, *jaxpr.invars], equations, outputs)
    return _with_constants(inner, opened.consts)


@functools.lru_cache(maxsize=4096)
def _hold(shape: tuple[int, ...], dtype: Any, sharding: NamedSharding) -> Any:
    """A constraint, traced once: a step holds a thousand values in a few dozen ways."""
    value = jax.ShapeDtypeStruct(shape, dtype)
    return jax.make_jaxpr(lambda value: [jax.lax.with_sharding_constraint(value, sharding)])(value)


def _with_constants(jaxpr: Any, constants: Sequence[Any]) -> core.ClosedJaxpr:
    """Binds the first inputs, which were the jaxpr's constants."""
    build: Any = core.Jaxpr
    count = len(constants)
    names = core.DebugInfo("jaxquard", "step", ("",) * (len(jaxpr.invars) - count), ("",) * len(jaxpr.outvars))
    bound = build(jaxpr.invars[:count], jaxpr.invars[count:], jaxpr.outvars, jaxpr.eqns, jaxpr.effects, names)
    return close(bound, constants)
