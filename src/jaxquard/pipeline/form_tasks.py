"""Turns places and rounds into tasks: pieces of code with inputs and outputs.

    0F: c = dot a w ; d = tanh c        (a: a batch leaf, w: a constant of the loop)
    =>
    stage0_F(w, leaf, index) -> (d) { a = leaf[index] ; c = dot a w ; d = tanh c }

A task of a loop takes whole batch leaves and the number of the microbatch, and cuts its slice
itself: nothing is cut or moved on the host. Reductions are part of the task that computes the
last term: the accumulator goes in and comes out. Phases that the schedule runs back to back on
one microbatch are one task, where no other task stands between them.
"""

from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import loop_p
from jaxquard.pipeline.loop_tasks import LoopTasks
from jaxquard.pipeline.outer_tasks import OuterTasks
from jaxquard.pipeline.place_equations import Placement
from jaxquard.pipeline.task_code import Job


def form_tasks(step: Step, *, placement: Placement, num_actors: int) -> tuple[tuple[Job, ...], ...]:
    """The jobs of each actor, in order."""
    jobs: list[list[Job]] = [[] for _ in range(num_actors)]
    loops = [equation for equation in step.jaxpr.eqns if equation.primitive is loop_p]
    outer = OuterTasks(step, placement)
    for segment in range(len(loops) + 1):
        for actor in range(num_actors):
            jobs[actor].extend(outer.jobs(segment, actor))
        if segment < len(loops):
            tasks = LoopTasks(loops[segment], segment)
            for actor, row in enumerate(tasks.rows()):
                jobs[actor].extend(row)
    return tuple(map(tuple, jobs))
