"""Opens the checkpoints of the backward, so that their parts can go to different tasks.

    b, c = remat2[jaxpr={ recompute ; gradients }] w a t
    =>
    d, e = optimization_barrier a t ; recompute w d ; b, c = gradients

A backward checkpoint recomputes its forward and takes gradients of inputs and of weights, all in
one equation. Opened, input and weight gradients can run apart, casts of weights can leave the loop
and gradients can stay unreduced, and still nothing is computed twice. The barrier is the one that
JAX itself sets, against merging the recomputation with the forward; where the schedule runs them
as separate programs anyway (it splits the backward), there is none, and constants of the loop never
go through it.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from jax import lax

from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    close,
    is_var,
    make_jaxpr,
    prune,
    rename,
    splice,
    substitute,
)
from jaxquard.ir.step import Step
from jaxquard.pipeline.inline_calls import CallOpener
from jaxquard.pipeline.loop import loop_p


def open_checkpoints(step: Step) -> Step:
    """Opens the checkpoints in the backward of every loop."""
    equations = [_open_in_loop(equation) if equation.primitive is loop_p else equation for equation in step.jaxpr.eqns]
    return replace(step, jaxpr=make_jaxpr(step.jaxpr.invars, equations, step.jaxpr.outvars))


def _open_in_loop(equation: Equation) -> Equation:
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    opened = open_in(
        body,
        is_wanted=is_transposed,
        with_barrier=not loop.schedule.splits_backward,
        constants=body.invars[: loop.num_constants],
    )
    return equation.replace(params={"body": close(opened), "loop": loop})


def is_transposed(equation: Equation) -> bool:
    """Whether JAX made the equation by transposing: it belongs to a backward."""
    for scope in equation.source_info.name_stack.stack:
        if getattr(scope, "name", "") in ("jvp", "transpose") and type(scope).__name__ == "Transform":
            return scope.name == "transpose"
    return False


def open_in(
    jaxpr: Jaxpr,
    *,
    is_wanted: Callable[[Equation], bool],
    with_barrier: bool,
    constants: Collection[Var] = (),
) -> Jaxpr:
    """Opens the checkpoints of a jaxpr for which `is_wanted` says so.

    Calls inside them that close over arrays stay closed: there is no place for those here.
    """
    renamed: dict[Var, Any] = {}
    equations: list[Equation] = []
    for equation in jaxpr.eqns:
        moved = rename(equation, renamed)
        if equation.primitive.name not in ("remat2", "checkpoint") or not is_wanted(equation):
            equations.append(moved)
            continue
        if with_barrier and equation.params.get("prevent_cse"):
            barrier, moved = _behind_barrier(moved, set(constants))
            equations.extend(barrier)
        body = equation.params["jaxpr"]
        call = close(getattr(body, "jaxpr", body), getattr(body, "consts", ()))
        equations.extend(CallOpener(constants=None).open_body(moved, call, renamed))
    return prune(make_jaxpr(jaxpr.invars, equations, [substitute(atom, renamed) for atom in jaxpr.outvars]))


def _behind_barrier(equation: Equation, constants: set[Var]) -> tuple[list[Equation], Equation]:
    inputs = list(equation.invars)
    held = [position for position, atom in enumerate(inputs) if is_var(atom) and atom not in constants]
    made, results = splice(lambda *arrays: lax.optimization_barrier(arrays), [inputs[p] for p in held])
    for position, result in zip(held, results, strict=True):
        inputs[position] = result
    return made, equation.replace(invars=inputs)
