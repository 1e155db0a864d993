"""The program of a step on whole leaves: stacks of layers are split as they enter, and joined again in the results.

    f0, f1 = step a0 a1        =>      a0 = a[0] ; a1 = a[1] ; f0, f1 = step a0 a1 ; f = stack f0 f1

A plan runs this program, so a step that is priced whole is priced so. A step without stacks stays as it is.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jaxquard.intraop.shardings.layouts import Assignment, Storage
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.step.parts import LeafPart, by_leaf, stacked_specs
from jaxquard.intraop.step.traced_step import TracedStep
from jaxquard.ir.jaxpr_tools import (
    Equation,
    Var,
    close,
    definitions,
    make_jaxpr,
    new_var,
    rename,
    splice,
    splice_traced,
    substitute,
)
from jaxquard.pricing.program.sharded_program import ShardedProgram


def _has_stacks(step: TracedStep) -> bool:
    """Returns true if the step takes or returns stacks of layers."""
    return any(part.index for part in (*step.inputs, *step.outputs))


def write_whole_step(
    programs: StepPrograms, assignment: Assignment, *, storage: Storage = Storage.AS_USED
) -> ShardedProgram:
    """Returns the program of a step, from the flat arguments and constants to the flat results."""
    step = programs.analysis.step
    program = programs.write_step(assignment, storage=storage)
    if not _has_stacks(step):
        return program
    closed: Any = program.jaxpr
    renamed: dict[Var, Any] = {}
    equations: list[Equation] = []
    inputs = [_split_leaf(step, places, closed.jaxpr.invars, equations, renamed) for places in _places(step.inputs)]
    constraints = [*_part_constraints(program, equations, renamed), *_moved(program, by=len(equations))]
    equations += [rename(equation, renamed) for equation in closed.jaxpr.eqns]
    outputs = [
        _join_leaf(step, places, [substitute(atom, renamed) for atom in closed.jaxpr.outvars], equations)
        for places in _places(step.outputs)
    ]
    in_specs = [*stacked_specs(step.inputs, program.in_specs), *program.in_specs[step.num_args :]]
    replaced = replaced_leaves(step)
    return ShardedProgram(
        name=program.name,
        jaxpr=close(make_jaxpr([*inputs, *closed.jaxpr.invars[step.num_args :]], equations, outputs)),
        in_specs=tuple(in_specs),
        out_specs=tuple(in_specs[replaced[leaf]] if leaf in replaced else None for leaf in range(len(outputs))),
        constraints=tuple(constraints),
        donated=tuple(sorted(replaced.values())),
    )


def _places(parts: Sequence[LeafPart]) -> list[list[int]]:
    """Returns, for each leaf, the places of its parts."""
    return [places for _, places in sorted(by_leaf(parts).items())]


def _split_leaf(
    step: TracedStep,
    places: Sequence[int],
    variables: Sequence[Var],
    equations: list[Equation],
    renamed: dict[Var, Any],
) -> Var:
    """Returns the variable of a leaf; `renamed` maps the variables of its parts to what is sliced from it."""
    indices = [step.inputs[place].index for place in places]
    if not indices[0]:
        return variables[places[0]]
    traced: Any = jax.make_jaxpr(lambda leaf: [_take(leaf, index) for index in indices])(
        step.arg_types[step.inputs[places[0]].leaf]
    )
    leaf = new_var(traced.jaxpr.invars[0])
    made, parts = splice_traced(traced, [leaf])
    equations += made
    renamed.update(zip((variables[place] for place in places), parts, strict=True))
    return leaf


def _join_leaf(step: TracedStep, places: Sequence[int], atoms: Sequence[Any], equations: list[Equation]) -> Any:
    parts = [step.outputs[place] for place in places]
    if not parts[0].index:
        return atoms[places[0]]
    made, (leaf,) = splice(lambda *values: [join_parts(parts, values)], [atoms[place] for place in places])
    equations += made
    return leaf


def _part_constraints(
    program: ShardedProgram, equations: Sequence[Equation], renamed: dict[Var, Any]
) -> list[tuple[int, int, PartitionSpec]]:
    """Returns the shardings of the parts that are sliced from leaves: those of the step's inputs."""
    closed: Any = program.jaxpr
    defined = definitions(equations)
    specs = zip(closed.jaxpr.invars, program.in_specs, strict=True)
    wanted = [(defined[renamed[var]], renamed[var], spec) for var, spec in specs if var in renamed]
    return [(position, equations[position].outvars.index(part), spec) for position, part, spec in wanted]


def _moved(program: ShardedProgram, *, by: int) -> list[tuple[int, int, PartitionSpec]]:
    return [(position + by, output, spec) for position, output, spec in program.constraints]


def replaced_leaves(step: TracedStep) -> dict[int, int]:
    """Returns, for each result that replaces an argument in the next step, that argument."""
    pairs = zip(step.inputs, step.result_of_input, strict=False)
    return {step.outputs[result].leaf: part.leaf for part, result in pairs if result is not None}


def _take(leaf: jax.Array, index: Sequence[int]) -> jax.Array:
    for place in index:
        leaf = lax.index_in_dim(leaf, place, keepdims=False)
    return leaf


def join_parts(parts: Sequence[LeafPart], values: Sequence[jax.Array]) -> jax.Array:
    """Stacks the parts of a leaf, which are in order."""
    if not parts[0].index:
        return values[0]
    inner: dict[int, list[int]] = {}
    for place, part in enumerate(parts):
        inner.setdefault(part.index[0], []).append(place)
    joined = [
        join_parts(
            [LeafPart(leaf=0, index=parts[place].index[1:]) for place in places], [values[place] for place in places]
        )
        for places in inner.values()
    ]
    return jnp.stack(joined)
