"""A planned step for a batch with other rows than the plan's: a last, smaller one, or one to evaluate.

    plan: 4 microbatches of 8 rows on 2 devices        a batch of 24 rows: 3 of 8, of 12: 2 of 6, of 5: 1 of 5

The strategies of the plan are applied to the step, traced for these rows. Where the devices do not divide the rows of
any microbatch, the stages stay as they are, every device has all rows, and the compiler shards the rest by the
shardings of the state.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxquard.errors import PlanError, ShardingError, UnsplitLossError
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.ir.jaxpr_tools import Equation
from jaxquard.planner.record.plan import Plan
from jaxquard.planner.step.apply_plan import (
    AppliedStep,
    OwnerStages,
    analyse_planned,
    find_owner_stages,
    find_plan_blocks,
    fit_step,
    write_applied,
    write_stages,
)
from jaxquard.planner.step.equation_stages import find_body
from jaxquard.planner.step.one_microbatch import OneMicrobatch, trace_microbatch
from jaxquard.planner.step.train_step import TrainStep, count_rows

# A batch may have this many times the microbatches that as large ones as the plan's would make.
_MOST_TIMES_MORE = 8


def apply_to_batch(
    step: TrainStep, args: Sequence[Any], plan: Plan, *, planned: AppliedStep, planned_args: Sequence[Any]
) -> AppliedStep:
    """Applies a plan to its step for a batch of other rows.

    Args:
        step: for any number of microbatches.
        args: the types of its arguments: the state, the batch, and more.
        planned: the step for the plan's own batch.
        planned_args: the types of its arguments.

    Raises:
        PlanError: if the batch has no microbatches of about the plan's rows, or the step other operations for it, of
            which the plan does not say the stages.
    """
    rows = count_rows(args[1])
    largest = count_rows(planned_args[1]) // plan.num_microbatches
    size = choose_size(rows, largest=largest, multiple_of=planned.num_row_shards)
    one = _trace(step, args, plan, num_microbatches=_count_microbatches(step, args, rows // size))
    try:
        return write_applied(one, StepPrograms(find_plan_blocks(one, plan)), plan)
    except ShardingError:
        like = _trace(step, planned_args, plan, num_microbatches=plan.num_microbatches)
        return _write_unsharded(one, plan, planned=planned, owners=_copy_stages(one, like, plan))


def _count_microbatches(step: TrainStep, args: Sequence[Any], wanted: int) -> int:
    """Returns the number of microbatches that is wanted, or one if the loss cannot be split into so many."""
    state, *inputs = args
    try:
        step.with_microbatches(wanted).find_split(state["params"], *inputs)
    except UnsplitLossError:
        return 1
    return wanted


def with_rows(batch: Any, rows: int) -> Any:
    """Returns the types of a batch with another number of rows."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), batch)


def choose_size(rows: int, *, largest: int, multiple_of: int) -> int:
    """Returns the rows of microbatches for a batch: as many as they may be, and rather such that the devices divide.

    Sharded rows take less time, and more microbatches more: they are worth as many times more as there are devices.

    Args:
        largest: that they may be.
        multiple_of: the devices over which rows are sharded.

    Raises:
        PlanError: if there would be many times more microbatches than with other rows.
    """
    sizes = [size for size in range(min(rows, largest), 0, -1) if rows % size == 0]
    if rows > sizes[0] * -(-rows // largest) * _MOST_TIMES_MORE:
        fitting = rows - rows % largest
        raise PlanError(
            f"a batch of {rows} rows has no equal microbatches of {largest} rows or a few less: the most that divide "
            f"it are {sizes[0]}. Pass {fitting} rows and the other {rows - fitting} as batches of their own."
        )
    sharded = next((size for size in sizes if size % multiple_of == 0), 0)
    return sharded if sharded * multiple_of >= sizes[0] else sizes[0]


def _trace(step: TrainStep, args: Sequence[Any], plan: Plan, *, num_microbatches: int) -> OneMicrobatch:
    return trace_microbatch(fit_step(step, num_microbatches=num_microbatches, recompute=plan.recompute), args)


def _copy_stages(one: OneMicrobatch, like: OneMicrobatch, plan: Plan) -> OwnerStages:
    """Returns the stages of a plan for a step, given the one that it was made for: operation by operation."""
    equations, originals = _body_equations(one), _body_equations(like)
    if plan.num_stages == 1:
        return OwnerStages(values={}, marks={})
    if [equation.primitive for equation in equations] != [original.primitive for original in originals]:
        raise PlanError(
            f"the loss has other operations on a batch of {one.num_rows} rows than on one of {like.num_rows}, so the "
            "plan does not say on which actors they belong, and the devices of an actor do not divide its rows. Use a "
            "batch whose rows they divide, or leave some out."
        )
    owners = find_owner_stages(analyse_planned(like, plan), plan)
    pairs = zip(equations, originals, strict=True)
    values = {
        var: owners.values[other]
        for equation, original in pairs
        for var, other in zip(equation.outvars, original.outvars, strict=True)
    }
    return OwnerStages(values=values, marks=owners.marks)


def _body_equations(one: OneMicrobatch) -> list[Equation]:
    results = [found.value for found in one.results]
    return find_body(one.traced.jaxpr, results=results, microbatch=()).jaxpr.eqns


def _write_unsharded(one: OneMicrobatch, plan: Plan, *, planned: AppliedStep, owners: OwnerStages) -> AppliedStep:
    """Writes a step whose devices have all rows; the state has the shardings of the plan."""
    planned_specs = jax.tree.leaves(planned.in_shardings, is_leaf=lambda spec: isinstance(spec, PartitionSpec))
    num_state, whole = one.in_tree.children()[0].num_leaves, PartitionSpec()
    specs = [planned_specs[arg] if arg < num_state else whole for arg in one.args]
    return write_stages(
        one, plan, jaxpr=one.traced.jaxpr, owners=owners, specs=[*specs, *[whole] * len(one.loop_leaves)]
    )
