"""Checks the schedules of a step's loops against the mesh, before anything is compiled.

A step without a loop has no schedule: it runs on the first actor alone. That is right for a small computation; for one
with matrix products the user may think otherwise, and is warned.
"""

import warnings

from jaxquard.errors import ScheduleError, StepWarning
from jaxquard.ir.jaxpr_tools import Jaxpr, sub_jaxprs
from jaxquard.ir.operations import MATMULS
from jaxquard.ir.source import user_line
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import loop_p
from jaxquard.schedules import AUTO, check_rows


def check_schedules(step: Step, *, num_actors: int) -> Step:
    """Refuses schedules that are malformed or made for another number of actors; returns the step as it is.

    Raises:
        ScheduleError: naming the tasks, or both numbers.
    """
    _warn_without_loop(step, num_actors)
    for equation in step.jaxpr.eqns:
        if equation.primitive is not loop_p:
            continue
        loop = equation.params["loop"]
        schedule = loop.schedule
        if schedule == AUTO:
            raise ScheduleError(
                f"the schedule of accumulate_grads at {loop.source} is AUTO, and no plan was applied to the step. Plan "
                "it with jaxquard.plan(step, args, ...) and run what the plan makes of it, start from the loss with "
                "jaxquard.parallelize, or write a schedule such as jaxquard.schedules.OneFOneB(2)."
            )
        if schedule.num_actors != num_actors:
            raise ScheduleError(
                f"schedule {schedule!r} of accumulate_grads at {loop.source} is for {schedule.num_actors} actors, "
                f"but the mesh has {num_actors}. Use RemoteMesh(({schedule.num_actors},), ...), or a schedule for "
                f"{num_actors} actors."
            )
        try:
            rows = schedule.rows(loop.num_microbatches)
            check_rows(rows, num_stages=schedule.num_stages, num_microbatches=loop.num_microbatches)
        except ScheduleError as error:
            raise ScheduleError(f"accumulate_grads at {loop.source}: {error}") from None
    return step


def _warn_without_loop(step: Step, num_actors: int) -> None:
    has_loop = any(equation.primitive is loop_p for equation in step.jaxpr.eqns)
    if num_actors == 1 or has_loop or not _multiplies(step.jaxpr):
        return
    warnings.warn(
        f"the step called at {user_line()} runs on actor 0 of {num_actors} alone: it has no accumulate_grads, whose "
        "schedule gives each actor its stages. Write its gradients as accumulate_grads(fn, schedule)(batch) with "
        "pipeline_yield between the stages, or start from the loss with jaxquard.parallelize. For one device, use "
        "jax.jit.",
        StepWarning,
        stacklevel=2,
    )


def _multiplies(jaxpr: Jaxpr) -> bool:
    return any(
        equation.primitive.name in MATMULS or any(map(_multiplies, sub_jaxprs(equation))) for equation in jaxpr.eqns
    )
