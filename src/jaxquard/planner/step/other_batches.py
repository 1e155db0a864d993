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

from jaxquard.errors import PlanError, ShardingError
from jaxquard.intraop.shardings.programs import StepPrograms
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
from jaxquard.planner.step.one_microbatch import OneMicrobatch, trace_microbatch
from jaxquard.planner.step.train_step import TrainStep, count_rows


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
        PlanError: if the step has other operations for such a batch, for which the plan has no stages.
    """
    rows = count_rows(args[1])
    largest = count_rows(planned_args[1]) // plan.num_microbatches
    size = choose_size(rows, largest=largest, multiple_of=planned.num_row_shards)
    one = _trace(step, args, plan, num_microbatches=rows // size)
    try:
        return write_applied(one, StepPrograms(find_plan_blocks(one, plan)), plan)
    except ShardingError:
        like = _trace(step, planned_args, plan, num_microbatches=plan.num_microbatches)
        return _apply_stages(one, plan, planned=planned, like=like)


def with_rows(batch: Any, rows: int) -> Any:
    """Returns the types of a batch with another number of rows."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), batch)


def choose_size(rows: int, *, largest: int, multiple_of: int) -> int:
    """Returns the rows of microbatches for a batch: as many as they may be, and rather such that the devices divide.

    Sharded rows take less time, and more microbatches more: they are worth as many times more as there are devices.

    Args:
        largest: that they may be.
        multiple_of: the devices over which rows are sharded.
    """
    sizes = [size for size in range(min(rows, largest), 0, -1) if rows % size == 0]
    sharded = next((size for size in sizes if size % multiple_of == 0), 0)
    return sharded if sharded * multiple_of >= sizes[0] else sizes[0]


def _trace(step: TrainStep, args: Sequence[Any], plan: Plan, *, num_microbatches: int) -> OneMicrobatch:
    return trace_microbatch(fit_step(step, num_microbatches=num_microbatches, recompute=plan.recompute), args)


def _apply_stages(one: OneMicrobatch, plan: Plan, *, planned: AppliedStep, like: OneMicrobatch) -> AppliedStep:
    """Applies the stages of a plan alone, given the step that it was made for: operation by operation."""
    equations, originals = one.traced.jaxpr.eqns, like.traced.jaxpr.eqns
    is_same = [equation.primitive for equation in equations] == [original.primitive for original in originals]
    if not is_same and plan.num_stages > 1:
        raise PlanError(
            f"a batch of {one.num_rows} rows has other operations than one of {like.num_rows}, and the devices of a "
            f"stage do not divide its rows, so the plan does not say where they belong. Use a batch of a multiple of "
            f"{planned.num_row_shards} rows, or leave these out."
        )
    owners = find_owner_stages(analyse_planned(like, plan), plan)
    values = (
        {
            var: owners.values[other]
            for equation, original in zip(equations, originals, strict=True)
            for var, other in zip(equation.outvars, original.outvars, strict=True)
        }
        if is_same
        else {}
    )
    state_specs = jax.tree.leaves(planned.in_shardings, is_leaf=lambda spec: isinstance(spec, PartitionSpec))
    num_state = one.in_tree.children()[0].num_leaves
    whole = PartitionSpec()
    specs = [state_specs[arg] if arg < num_state else whole for arg in one.args]
    return write_stages(
        one,
        plan,
        jaxpr=one.traced.jaxpr,
        owners=OwnerStages(values=values, marks=owners.marks),
        specs=[*specs, *[whole] * len(one.loop_leaves)],
    )
