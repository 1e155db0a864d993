"""Gathers state that is sharded over a data axis once, before the loop (JaxPP, section 5.2.1).

    loop { c = dot x w }                       (w: sharded over the axis that also shards the batch)
    =>
    v = sharding_constraint[whole] w ; loop { c = dot x v }

Weights may rest in shards over the data-parallel devices. Each microbatch would gather them anew;
so whatever a loop takes as a constant, and is sharded over an axis that shards the loop's batch, is
gathered over that axis in front of it. Casts were hoisted before, so what is gathered is cast. On explicit axes
nothing is changed: there the step says itself where it gathers, and `hoist_invariants` moves that. So does a step under
a plan (`Loop.has_gathered`): its weights may be used in shards over an axis that shards the batch as well.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from jaxquard.ir.jaxpr_tools import Equation, Var, is_var, make_jaxpr, splice, substitute
from jaxquard.ir.step import Step
from jaxquard.ir.typed_shardings import auto_axes, restrict_axes
from jaxquard.pipeline.loop import loop_p
from jaxquard.pipeline.specs.infer_specs import Spec, SpecRules


def gather_shards(step: Step, *, input_specs: Sequence[Spec], mesh: AbstractMesh | None) -> Step:
    """Inserts the gathers in front of every loop."""
    if mesh is None or not shards_anything(step, input_specs):
        return step
    rules = SpecRules.on_auto_axes(mesh)
    specs = auto_specs(step, input_specs, mesh)
    equations: list[Equation] = []
    for equation in step.jaxpr.eqns:
        if equation.primitive is loop_p and not equation.params["loop"].has_gathered:
            gathers, equation = _gather(equation, specs, mesh)
            equations.extend(gathers)
            rules.follow(gathers, specs)
        else:
            rules.follow([equation], specs)
        equations.append(equation)
    return replace(step, jaxpr=make_jaxpr(step.jaxpr.invars, equations, step.jaxpr.outvars))


def shards_anything(step: Step, input_specs: Sequence[Spec]) -> bool:
    """Returns True if an input of the step is sharded, or a value outside of its loops is constrained."""
    constraints = (equation.primitive.name == "sharding_constraint" for equation in step.jaxpr.eqns)
    return any(map(any, input_specs)) or any(constraints)


def auto_specs(step: Step, input_specs: Sequence[Spec], mesh: AbstractMesh) -> dict[Var, Spec]:
    """Returns the specs of a step's inputs over the axes that are in no type."""
    kept = auto_axes(mesh)
    return {var: restrict_axes(spec, kept) for var, spec in zip(step.jaxpr.invars, input_specs, strict=True)}


def batch_axes(equation: Equation, specs: dict[Var, Spec]) -> set[str]:
    """Returns the mesh axes over which the microbatches of a loop are sharded."""
    leaves = equation.invars[equation.params["loop"].first_leaf :]
    return {axis for atom in leaves if is_var(atom) for axes in specs.get(atom, ())[1:] for axis in axes}


def _gather(equation: Equation, specs: dict[Var, Spec], mesh: AbstractMesh) -> tuple[list[Equation], Equation]:
    data = batch_axes(equation, specs)
    num_constants = equation.params["loop"].num_constants
    gathered: dict[Any, Any] = {}
    gathers: list[Equation] = []
    for atom in equation.invars[:num_constants]:
        spec = specs.get(atom, ()) if is_var(atom) else ()
        if not is_var(atom) or atom in gathered or data.isdisjoint(axis for axes in spec for axis in axes):
            continue
        kept = PartitionSpec(*(tuple(axis for axis in axes if axis not in data) or None for axes in spec))
        whole = NamedSharding(mesh, kept)
        made, (gathered[atom],) = splice(lambda x, s=whole: [jax.lax.with_sharding_constraint(x, s)], [atom])
        gathers.extend(made)
    constants = [substitute(atom, gathered) for atom in equation.invars[:num_constants]]
    return gathers, equation.replace(invars=[*constants, *equation.invars[num_constants:]])
