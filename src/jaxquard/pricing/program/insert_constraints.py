"""Holds inner values of a jaxpr to shardings.

    b = dot_general a w        =>      b = dot_general a w
    c = exp b                          d = sharding_constraint[P('x')] b
                                       c = exp d

Every use after the equation, and the outputs, take the held value. Beside what is asked for, the inputs of a few
convolutions are held (`gather_grouped`), with which the numbers would else be wrong.

`gather_grouped` keeps XLA's partitioner off convolutions in batch groups, which it gets wrong on meshes of two axes:

    g = conv_general_dilated[batch_group_count=4] x d    =>    y = sharding_constraint[P()] x
                                                               e = sharding_constraint[P()] d
                                                               g = conv_general_dilated[batch_group_count=4] y e

JAX makes them for the gradient of the kernel of a grouped or depthwise convolution. Where an input is sharded along one
axis and whole along another of k devices, the sum comes out k times too large: seen in JAX 0.10.2 and 0.11.2, on CPU,
with `jax.jit(in_shardings=...)` alone. On one axis it is right. With inputs that are whole there is nothing to sum, so
the numbers are right, at the price of gathering them, which pricing sees.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxquard.ir.jaxpr_tools import Equation, close, is_var, make_jaxpr, rename, splice_traced, substitute


def hold_value(atom: Any, sharding: NamedSharding) -> tuple[list[Equation], Any]:
    """The equations, and the held value."""
    equations, (held,) = splice_traced(_traced(atom.aval.shape, atom.aval.dtype, sharding), [atom])
    return equations, held


@functools.lru_cache(maxsize=4096)
def _traced(shape: tuple[int, ...], dtype: Any, sharding: NamedSharding) -> Any:
    """Traced once: a step holds a thousand values in a few dozen ways."""
    value = jax.ShapeDtypeStruct(shape, dtype)
    return jax.make_jaxpr(lambda value: [jax.lax.with_sharding_constraint(value, sharding)])(value)


def gather_grouped(closed: core.ClosedJaxpr, *, mesh: Mesh | AbstractMesh) -> core.ClosedJaxpr:
    """The jaxpr with the inputs of such convolutions whole, also in bodies of loops, branches and calls."""
    if sum(size > 1 for size in mesh.shape.values()) < 2:
        return closed
    return _in_value(closed, NamedSharding(mesh, PartitionSpec()))


def _in_value(value: Any, whole: NamedSharding) -> Any:
    """A parameter with the jaxprs in it rewritten; the same object where there is nothing to do."""
    # In JAX 0.11 a closed jaxpr is a jaxpr, and its own.
    inner = getattr(value, "jaxpr", value)
    if isinstance(value, core.ClosedJaxpr) and inner is not value:
        jaxpr = _in_value(inner, whole)
        return value if jaxpr is inner else close(jaxpr, value.consts)
    if isinstance(value, core.Jaxpr):
        opened: Any = value
        equations = [new for equation in opened.eqns for new in _in_equation(equation, whole)]
        is_same = len(equations) == len(opened.eqns) and all(map(_is, equations, opened.eqns))
        return value if is_same else opened.replace(eqns=equations)
    if type(value) in (tuple, list):
        items = [_in_value(item, whole) for item in value]
        return value if all(map(_is, items, value)) else type(value)(items)
    return value


def _in_equation(equation: Equation, whole: NamedSharding) -> list[Equation]:
    name = equation.primitive.name
    if name == "conv_general_dilated" and equation.params["batch_group_count"] > 1:
        held = {atom: hold_value(atom, whole) for atom in equation.invars if is_var(atom)}
        before = [one for equations, _ in held.values() for one in equations]
        return [*before, rename(equation, {atom: value for atom, (_, value) in held.items()})]
    # What stands in a shard_map is per device already: nothing partitions it.
    if name == "shard_map":
        return [equation]
    changed = {key: new for key, old in equation.params.items() if (new := _in_value(old, whole)) is not old}
    return [equation.replace(params={**equation.params, **changed})] if changed else [equation]


def _is(left: Any, right: Any) -> bool:
    return left is right


def insert_constraints(
    closed: core.ClosedJaxpr, constraints: Sequence[tuple[int, int, PartitionSpec]], *, mesh: Mesh | AbstractMesh
) -> core.ClosedJaxpr:
    """The jaxpr with constraints, given as (equation, output, spec), on a mesh."""
    return gather_grouped(_insert(closed, constraints, mesh) if constraints else closed, mesh=mesh)


def _insert(
    closed: core.ClosedJaxpr, constraints: Sequence[tuple[int, int, PartitionSpec]], mesh: Mesh | AbstractMesh
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
