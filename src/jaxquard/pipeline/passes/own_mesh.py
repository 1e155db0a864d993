"""Rewrites every sharding in the step to the actor's own mesh.

    b = sharding_constraint[sharding=NamedSharding(the user's devices, P(data))] a
    =>
    b = sharding_constraint[sharding=NamedSharding(an actor's axes, P(data))] a

A user may constrain values with a mesh of real devices, the one that plain `jax.jit` would use.
The tasks of a stage run on their actor's devices, whichever these are; so only the axis names are
kept.
"""

from dataclasses import replace
from typing import Any

from jax.extend import core
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from jaxquard.errors import ShardingError
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, close, make_jaxpr
from jaxquard.ir.step import Step


def own_mesh(step: Step, *, mesh: AbstractMesh | None) -> Step:
    """Replaces meshes of real devices, also inside loops, scans and calls."""
    if mesh is None:
        return step
    return replace(step, jaxpr=_rewrite(step.jaxpr, mesh))


def _rewrite(jaxpr: Jaxpr, mesh: AbstractMesh) -> Jaxpr:
    equations = [_rewrite_equation(equation, mesh) for equation in jaxpr.eqns]
    if all(new is old for new, old in zip(equations, jaxpr.eqns, strict=True)):
        return jaxpr
    if jaxpr.constvars:
        unchecked: Any = jaxpr
        return unchecked.replace(eqns=equations)
    return make_jaxpr(jaxpr.invars, equations, jaxpr.outvars)


def _rewrite_equation(equation: Equation, mesh: AbstractMesh) -> Equation:
    params = {name: _rewrite_value(value, mesh) for name, value in equation.params.items()}
    if all(params[name] is value for name, value in equation.params.items()):
        return equation
    return equation.replace(params=params)


def _rewrite_value(value: Any, mesh: AbstractMesh) -> Any:
    if isinstance(value, core.ClosedJaxpr):
        inside: Any = value.jaxpr
        rewritten = _rewrite(inside, mesh)
        return value if rewritten is inside else close(rewritten, value.consts)
    if isinstance(value, core.Jaxpr):
        plain: Any = value
        return _rewrite(plain, mesh)
    if isinstance(value, tuple):
        items = tuple(_rewrite_value(item, mesh) for item in value)
        changed = any(new is not old for new, old in zip(items, value, strict=True))
        return items if changed and type(value) is tuple else value
    if isinstance(value, NamedSharding) and isinstance(value.mesh, Mesh):
        return NamedSharding(_same_axes(value.mesh, mesh), value.spec)
    if isinstance(value, Mesh):
        return _same_axes(value, mesh)
    return value


def _same_axes(theirs: Mesh, mesh: AbstractMesh) -> AbstractMesh:
    unknown = [name for name in theirs.axis_names if name not in mesh.axis_names]
    if unknown:
        raise ShardingError(
            f"the step constrains a value over the mesh axis {unknown[0]!r}, but the actors' mesh has "
            f"{', '.join(map(repr, mesh.axis_names))}. Name the axes alike, with RemoteMesh(..., spmd_axis_names=...)."
        )
    return mesh
