"""Opens the checkpoints of a loop's backward, so that their parts can go to different tasks.

    b, c = remat2[jaxpr={ recompute ; gradients }] w a t
    =>
    d, e = optimization_barrier a t ; recompute w d ; b, c = gradients

A backward checkpoint recomputes its forward and takes gradients of inputs and of weights, all in
one equation. Opened, input and weight gradients can run apart, casts of weights can leave the loop
and gradients can stay unreduced, and still nothing is computed twice. The barrier (see
`ir.open_checkpoints`) is left out where the schedule splits the backward, and so runs forward and
recomputation as separate programs anyway; constants of the loop never go through it.
"""

from dataclasses import replace

from jaxquard.ir import open_checkpoints as ir_checkpoints
from jaxquard.ir.jaxpr_tools import Equation, close, make_jaxpr
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import loop_p


def open_checkpoints(step: Step) -> Step:
    """Opens the checkpoints in the backward of every loop."""
    equations = [_open_in_loop(equation) if equation.primitive is loop_p else equation for equation in step.jaxpr.eqns]
    return replace(step, jaxpr=make_jaxpr(step.jaxpr.invars, equations, step.jaxpr.outvars))


def _open_in_loop(equation: Equation) -> Equation:
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    opened = ir_checkpoints.open_checkpoints(
        body,
        is_wanted=ir_checkpoints.is_transposed,
        with_barrier=not loop.schedule.splits_backward,
        constants=body.invars[: loop.num_constants],
    )
    return equation.replace(params={"body": close(opened), "loop": loop})
