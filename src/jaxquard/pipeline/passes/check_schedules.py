"""Checks the schedules of a step's loops against the mesh, before anything is compiled."""

from jaxquard.errors import ScheduleError
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import loop_p
from jaxquard.schedules import AUTO, check_rows


def check_schedules(step: Step, *, num_actors: int) -> Step:
    """Refuses schedules that are malformed or made for another number of actors; returns the step as it is.

    Raises:
        ScheduleError: naming the tasks, or both numbers.
    """
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
