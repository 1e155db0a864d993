"""Applies a plan to a step: the loop gets stages, a schedule and shardings, and the arguments their specs.

    accumulate_grads[AUTO] { b = dot a w ; c = dot b v ; ... }
    =>
    accumulate_grads[OneFOneB(2)] { b = dot a w ; d = sharding_constraint b ; e = pipeline_yield d ; c = dot e v ; ... }

The body is the one that was analysed: calls, checkpoints and scans over layers opened. Outside of the loop the step
stays as it was written. The result is a plain function; under `jax.jit` it computes what the step does.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
from jax.extend import core
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jaxquard.errors import PlanError, ShardingError
from jaxquard.intraop.segments.analysis import Analysis, analyse_step, check_choices
from jaxquard.intraop.segments.tune_products import check_products
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.step.fingerprint import differences
from jaxquard.intraop.step.parts import LeafPart, stacked_specs
from jaxquard.ir.jaxpr_tools import Jaxpr, Var, close, variables
from jaxquard.pipeline.loop import Loop
from jaxquard.planner.record.plan import Plan, Recompute
from jaxquard.planner.step.build_loop import build_step
from jaxquard.planner.step.check_arguments import check_arguments
from jaxquard.planner.step.equation_stages import EquationStages, find_body, stage_equations
from jaxquard.planner.step.insert_marks import insert_marks
from jaxquard.planner.step.mark_blocks import find_mark_blocks
from jaxquard.planner.step.one_microbatch import OneMicrobatch, trace_microbatch
from jaxquard.planner.step.train_step import TrainStep
from jaxquard.pricing.program.insert_constraints import insert_constraints
from jaxquard.pricing.program.sharded_program import ShardedProgram
from jaxquard.schedules import OneFOneB, Schedule, make_schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedStep:
    """A step under a plan, for `RemoteMesh.distributed(fn, in_shardings=..., donate_argnums=...)`.

    Attributes:
        fn: a function of the step's arguments.
        in_shardings: for each argument, a pytree of specs.
        donate_argnums: the arguments that are state.
        num_actors: of the mesh that it needs.
        axes: of each actor's mesh, and their sizes.
        schedule: of its loop.
        jaxpr: the step itself; its inputs are the flat arguments, then constants.
        readers: for each flat argument, or part of one, the stages whose tasks read it.
        row_axes: over which the rows of a microbatch are sharded, as a spec has them.
    """

    fn: Callable[..., Any] = field(repr=False)
    in_shardings: tuple[Any, ...] = field(repr=False)
    donate_argnums: tuple[int, ...]
    num_actors: int
    axes: dict[str, int]
    schedule: Schedule
    jaxpr: Jaxpr = field(repr=False)
    readers: Mapping[LeafPart, frozenset[int]] = field(repr=False)
    row_axes: Any = None

    @property
    def num_row_shards(self) -> int:
        """The parts in which the rows of a microbatch are sharded."""
        axes = (self.row_axes,) if isinstance(self.row_axes, str) else self.row_axes or ()
        return math.prod(self.axes[axis] for axis in axes)


def apply_plan(step: Callable[..., Any], args: Sequence[Any], plan: Plan) -> AppliedStep:
    """Applies a plan to the step that it was made for.

    Args:
        step: a `TrainStep`; or a function of pytrees with one loop, `accumulate_grads(fn, AUTO)`, of as many
            microbatches as the plan, which recomputes what it is written to.
        args: its arguments, or their types.
        plan: from a search, or read from a file.

    Raises:
        PlanError: if the plan was made for another step; the message has the difference.
    """
    fitted = fit_step(step, num_microbatches=plan.num_microbatches, recompute=plan.recompute)
    one = trace_microbatch(fitted, args)
    return write_applied(one, StepPrograms(analyse_planned(one, plan)), plan)


def fit_step(step: Callable[..., Any], *, num_microbatches: int, recompute: Recompute) -> Callable[..., Any]:
    """Returns a step from a loss for so many microbatches, with its loss recomputed; any other step as it is."""
    if not isinstance(step, TrainStep):
        return step
    return step.with_microbatches(num_microbatches, recompute)


def analyse_planned(one: OneMicrobatch, plan: Plan) -> Analysis:
    """Finds the blocks and segments of a step as a plan has them.

    Raises:
        PlanError: if the plan was made for another step.
    """
    if one.loop.num_microbatches != plan.num_microbatches:
        raise PlanError(
            f"the plan has {plan.num_microbatches} microbatches, but accumulate_grads at {one.loop.source} gets "
            f"{one.loop.num_microbatches}. Split the batch into {plan.num_microbatches}, or plan the step again."
        )
    different = "" if plan.fingerprint is None else differences(plan.fingerprint, one.traced)
    if different:
        raise PlanError(f"the plan was made for another step: {different} Plan this one.")
    try:
        return find_plan_blocks(one, plan)
    except ShardingError as error:
        raise PlanError(str(error)) from error


def find_plan_blocks(one: OneMicrobatch, plan: Plan) -> Analysis:
    """Finds the blocks and segments of a step with the strategies of a plan.

    Raises:
        ShardingError: if they do not fit.
    """
    products = {int(number): plans for number, plans in plan.products.items()}
    analysis = analyse_step(
        one.traced,
        axes=plan.axes,
        lengths=plan.segments,
        plan_products=partial(check_products, products=products, axes=plan.axes, assignment=plan.assignment),
        shards_rows_alone=True,
    )
    check_choices(analysis, plan.assignment)
    return analysis


def write_applied(one: OneMicrobatch, programs: StepPrograms, plan: Plan) -> AppliedStep:
    """Writes the step under a plan, given the programs of its analysis."""
    program = programs.write_step(plan.assignment, storage=_find_storage(plan))
    return write_stages(
        one,
        plan,
        jaxpr=_constrained(program, plan_mesh(plan)),
        owners=find_owner_stages(programs.analysis, plan),
        specs=stacked_specs(one.traced.inputs, program.in_specs[: one.traced.num_args]),
    )


def write_stages(
    one: OneMicrobatch, plan: Plan, *, jaxpr: Jaxpr, owners: "OwnerStages", specs: Sequence[PartitionSpec]
) -> AppliedStep:
    """Writes the step with the stages and the schedule of a plan.

    Args:
        jaxpr: the step on one microbatch, with its constraints.
        owners: the stages of what it makes.
        specs: of the arguments, and then of the microbatches.
    """
    schedule, mesh = find_plan_schedule(plan), plan_mesh(plan)
    stages = _stage_body(one, plan, jaxpr, owners)
    names = [stage.name for stage in plan.stages]
    body = insert_marks(stages, names=names, source=one.loop.source)
    leaf_specs = specs[len(one.args) :]
    written, constants = build_step(
        one,
        replace(stages.body, jaxpr=body),
        schedule=schedule,
        leaf_specs=leaf_specs if mesh.size > 1 else None,
        mesh=mesh,
        scatters_sums=plan.storage == Storage.ZERO_2.value,
    )
    return AppliedStep(
        fn=_as_function(one, written, constants),
        in_shardings=_in_shardings(one, specs),
        donate_argnums=_state_args(one),
        num_actors=plan.num_actors,
        axes=dict(plan.axes),
        schedule=schedule,
        jaxpr=written,
        readers=_find_readers(one, stages),
        row_axes=next((spec[0] for spec in leaf_specs if spec and spec[0] is not None), None),
    )


def plan_mesh(plan: Plan) -> AbstractMesh:
    """Returns the mesh of each actor of a plan."""
    return AbstractMesh(tuple(plan.axes.values()), tuple(plan.axes), axis_types=(AxisType.Auto,) * len(plan.axes))


def find_plan_schedule(plan: Plan) -> Schedule:
    """Returns the schedule of a plan."""
    if plan.schedule == "none":
        if plan.num_stages != 1:
            raise PlanError(f"the plan has {plan.num_stages} stages and no schedule. Give it one, such as 1f1b.")
        return OneFOneB(1)
    return make_schedule(plan.schedule, num_stages=plan.num_stages, num_actors=plan.num_actors)


def _find_storage(plan: Plan) -> Storage:
    """Returns the layout of state."""
    names = {storage.value: storage for storage in Storage}
    if plan.storage not in names:
        raise PlanError(f"the plan stores state {plan.storage!r}, which is not one of {', '.join(sorted(names))}.")
    return names[plan.storage]


def _constrained(program: ShardedProgram, mesh: AbstractMesh) -> Jaxpr:
    closed: Any = program.jaxpr
    if math.prod(mesh.shape.values()) > 1:
        closed = insert_constraints(program.jaxpr, program.constraints, mesh=mesh)
    return closed.jaxpr


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerStages:
    """The stages of what a step makes.

    Attributes:
        values: for results of equations, the stage of the block that owns them.
        marks: for marks of the user's that end a stage, by number, the stage.
    """

    values: dict[Var, int]
    marks: dict[int, int]


def find_owner_stages(analysis: Analysis, plan: Plan) -> OwnerStages:
    """Returns the stages of a step's blocks under a plan."""
    stage_of_block = [stage for stage, found in enumerate(plan.stages) for _ in range(*found.blocks)]
    values: dict[Var, int] = {}
    for equation, owner in zip(analysis.graph.equations, analysis.owners, strict=True):
        values.update(dict.fromkeys(equation.outvars, stage_of_block[owner]))
    ends = {block: stage for stage, block in enumerate(plan.stage_stops[:-1])}
    marks = {mark: ends[block] for mark, block in find_mark_blocks(analysis).items() if block in ends}
    return OwnerStages(values=values, marks=marks)


def _stage_body(one: OneMicrobatch, plan: Plan, jaxpr: Jaxpr, owners: OwnerStages) -> EquationStages:
    """Returns the body of the loop with the stages of its equations."""
    body = find_body(
        jaxpr, results=[found.value for found in one.results], microbatch=microbatch_inputs(one, jaxpr.invars)
    )
    return stage_equations(
        body,
        loop=part_loop(one),
        owner_stages=owners.values,
        marks=owners.marks,
        num_stages=plan.num_stages,
    )


def _find_readers(one: OneMicrobatch, stages: EquationStages) -> dict[LeafPart, frozenset[int]]:
    """Returns the stages that read each argument, or part of one."""
    read: dict[Var, set[int]] = {}
    for equation, stage in reversed(list(zip(stages.body.jaxpr.eqns, stages.stages, strict=True))):
        # What has no stage is made where it is used.
        found = {stage} if stage is not None else set().union(*(read.get(var, ()) for var in equation.outvars))
        for var in variables(equation.invars):
            read.setdefault(var, set()).update(found)
    parts = zip(one.traced.inputs, stages.body.jaxpr.invars, strict=False)
    return {
        replace(part, leaf=one.args[part.leaf]): frozenset(read.get(var, ()))
        for part, var in parts
        if part.leaf < len(one.args)
    }


def microbatch_inputs(one: OneMicrobatch, inputs: Sequence[Var]) -> list[Var]:
    """Returns the inputs of the step on one microbatch that are the microbatch."""
    parts = zip(inputs, one.traced.inputs, strict=False)
    return [var for var, part in parts if part.leaf >= len(one.args)]


def part_loop(one: OneMicrobatch) -> Loop:
    """Returns the loop with a reduction for each part of its results."""
    return replace(one.loop, reductions=tuple(one.loop.reductions[found.part.leaf] for found in one.results))


def _as_function(one: OneMicrobatch, jaxpr: Jaxpr, constants: Sequence[Any]) -> Callable[..., Any]:
    run = core.jaxpr_as_fun(close(jaxpr))
    avals = [var.aval for var in one.whole.invars[: one.in_tree.num_leaves]]
    types = jax.tree.unflatten(one.in_tree, [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals])

    def applied_step(*args: Any) -> Any:
        check_arguments(types, args)
        leaves = jax.tree.leaves(args)
        return jax.tree.unflatten(one.out_tree, run(*leaves, *constants))

    return applied_step


def _in_shardings(one: OneMicrobatch, specs: Sequence[PartitionSpec]) -> tuple[Any, ...]:
    """Returns the specs of the step's arguments; what becomes microbatches by operations comes whole."""
    found = [PartitionSpec()] * one.in_tree.num_leaves
    numbers = {var: number for number, var in enumerate(one.whole.invars)}
    for atom, spec in zip(one.loop_leaves, specs[len(one.args) :], strict=True):
        number = numbers.get(atom)
        if number is not None and number < len(found):
            found[number] = PartitionSpec(None, *spec)
    for arg, spec in zip(one.args, specs, strict=False):
        found[arg] = spec
    return jax.tree.unflatten(one.in_tree, found)


def _state_args(one: OneMicrobatch) -> tuple[int, ...]:
    """Returns the arguments all of whose leaves are state."""
    pairs = zip(one.traced.inputs, one.traced.result_of_input, strict=False)
    state = {one.args[part.leaf] for part, result in pairs if result is not None and part.leaf < len(one.args)}
    found, start = [], 0
    for number, tree in enumerate(one.in_tree.children()):
        leaves = range(start, start + tree.num_leaves)
        start += tree.num_leaves
        if leaves and state.issuperset(leaves):
            found.append(number)
    return tuple(found)
