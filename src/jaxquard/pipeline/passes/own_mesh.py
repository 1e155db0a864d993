"""Rewrites every mesh in the step to the actor's own.

    b = sharding_constraint[sharding=NamedSharding(the user's devices, P(data))] a
    c = shard_map[mesh=the user's devices] b
    =>
    b = sharding_constraint[sharding=NamedSharding(an actor's axes, P(data))] a
    c = shard_map[mesh=an actor's axes] b

A user may constrain values with a mesh of real devices, the one that plain `jax.jit` would use, and give it to
`jax.shard_map`. The tasks of a stage run on their actor's devices, whichever these are; so only the axis names are
kept. The types of values inside a `shard_map`, and the contexts of equations, name meshes too, and are rewritten alike.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jax.extend import core
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from jaxquard import _jax_compat
from jaxquard.errors import ShardingError
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, close, is_var, make_jaxpr, new_var, substitute
from jaxquard.ir.step import Step


def own_mesh(step: Step, *, mesh: AbstractMesh | None) -> Step:
    """Replaces meshes, also inside loops, scans and calls."""
    if mesh is None:
        return step
    return replace(step, jaxpr=MeshWriter(mesh).rewrite(step.jaxpr))


class MeshWriter:
    """Writes jaxprs on one mesh; a jaxpr that several equations share is written once."""

    def __init__(self, mesh: AbstractMesh) -> None:
        self._mesh = mesh
        self._meshes: dict[Mesh | AbstractMesh, AbstractMesh] = {}
        self._contexts: dict[int, Any] = {}
        # With the originals, so that no other object gets the same id.
        self._written: dict[int, tuple[Any, Any]] = {}

    def rewrite(self, jaxpr: Jaxpr) -> Jaxpr:
        """Returns a jaxpr on the mesh; the same where it names none."""
        renamed: dict[Var, Var] = {}
        invars = [self._define(var, renamed) for var in jaxpr.invars]
        constants = [self._define(var, renamed) for var in jaxpr.constvars]
        equations = [self._rewrite_equation(equation, renamed) for equation in jaxpr.eqns]
        if not renamed and all(new is old for new, old in zip(equations, jaxpr.eqns, strict=True)):
            return jaxpr
        outputs = self._rewrite_atoms(jaxpr.outvars, renamed)
        if constants:
            unchecked: Any = jaxpr
            return unchecked.replace(invars=invars, constvars=constants, eqns=equations, outvars=outputs)
        return make_jaxpr(invars, equations, outputs)

    def _define(self, var: Var, renamed: dict[Var, Var]) -> Var:
        aval = self._rewrite_type(var.aval)
        if aval is var.aval:
            return var
        renamed[var] = new_var(aval)
        return renamed[var]

    def _rewrite_atoms(self, atoms: Sequence[Any], renamed: dict[Var, Var]) -> list[Any]:
        return [substitute(atom, renamed) if is_var(atom) else self._rewrite_literal(atom) for atom in atoms]

    def _rewrite_literal(self, literal: Any) -> Any:
        aval = self._rewrite_type(literal.aval)
        return literal if aval is literal.aval else _jax_compat.literal_of(literal.val, aval)

    def _rewrite_type(self, aval: Any) -> Any:
        sharding = getattr(aval, "sharding", None)
        if not isinstance(sharding, NamedSharding):
            return aval
        mesh = self._translate(sharding.mesh)
        return aval if mesh is sharding.mesh else aval.update(sharding=NamedSharding(mesh, sharding.spec))

    def _rewrite_equation(self, equation: Equation, renamed: dict[Var, Var]) -> Equation:
        params = {name: self._rewrite_value(value) for name, value in equation.params.items()}
        changes: dict[str, Any] = {}
        if any(params[name] is not value for name, value in equation.params.items()):
            changes["params"] = params
        inputs = self._rewrite_atoms(equation.invars, renamed)
        if any(new is not old for new, old in zip(inputs, equation.invars, strict=True)):
            changes["invars"] = inputs
        outvars = [self._define(var, renamed) for var in equation.outvars]
        if any(new is not old for new, old in zip(outvars, equation.outvars, strict=True)):
            changes["outvars"] = outvars
        context = self._rewrite_context(equation.ctx)
        if context is not equation.ctx:
            changes["ctx"] = context
        return equation.replace(**changes) if changes else equation

    def _rewrite_context(self, context: Any) -> Any:
        mesh = _jax_compat.context_mesh(context)
        if mesh is None or self._translate(mesh) is mesh:
            return context
        if id(context) not in self._contexts:
            self._contexts[id(context)] = _jax_compat.context_on(context, self._translate(mesh))
        return self._contexts[id(context)]

    def _rewrite_value(self, value: Any) -> Any:
        if isinstance(value, core.ClosedJaxpr | core.Jaxpr):
            if id(value) not in self._written:
                self._written[id(value)] = (value, self._rewrite_jaxpr(value))
            return self._written[id(value)][1]
        if isinstance(value, tuple):
            items = tuple(self._rewrite_value(item) for item in value)
            changed = any(new is not old for new, old in zip(items, value, strict=True))
            return items if changed and type(value) is tuple else value
        if isinstance(value, NamedSharding):
            mesh = self._translate(value.mesh, of_constraint=True)
            return value if mesh is value.mesh else NamedSharding(mesh, value.spec)
        return self._translate(value) if isinstance(value, Mesh | AbstractMesh) else value

    def _rewrite_jaxpr(self, value: Any) -> Any:
        if not isinstance(value, core.ClosedJaxpr):
            return self.rewrite(value)
        inside: Any = value.jaxpr
        rewritten = self.rewrite(inside)
        return value if rewritten is inside else close(rewritten, value.consts)

    def _translate(self, theirs: Mesh | AbstractMesh, *, of_constraint: bool = False) -> AbstractMesh:
        """Returns the actor's mesh that stands for another: axes that are manual inside a `shard_map` stay so."""
        if theirs is self._mesh:
            return self._mesh
        if theirs not in self._meshes:
            self._check_axes(theirs, of_constraint=of_constraint)
            self._meshes[theirs] = self._find(theirs)
        return self._meshes[theirs]

    def _find(self, theirs: Mesh | AbstractMesh) -> AbstractMesh:
        kinds = zip(theirs.axis_names, theirs.axis_types, strict=True)
        manual = {name: kind for name, kind in kinds if kind is AxisType.Manual}
        if isinstance(theirs, AbstractMesh) and theirs.empty:
            return theirs
        return self._mesh.update_axis_types(manual) if manual else self._mesh

    def _check_axes(self, theirs: Mesh | AbstractMesh, *, of_constraint: bool) -> None:
        unknown = [name for name in theirs.axis_names if name not in self._mesh.axis_names]
        if unknown:
            what = "constrains a value over" if of_constraint else "names"
            raise ShardingError(
                f"the step {what} the mesh axis {unknown[0]!r}, but the actors' mesh has "
                f"{', '.join(map(repr, self._mesh.axis_names))}. Name the axes alike, with "
                "RemoteMesh(..., spmd_axis_names=...)."
            )
