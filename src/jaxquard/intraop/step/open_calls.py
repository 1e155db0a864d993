"""Opens the calls and checkpoints of a jaxpr, so that its equations stand in one list."""

from dataclasses import replace
from typing import Any

from jaxquard.ir.jaxpr_tools import Jaxpr, make_jaxpr
from jaxquard.ir.step import Step
from jaxquard.pipeline.inline_calls import inline_calls
from jaxquard.pipeline.open_checkpoints import open_in

_CHECKPOINTS = ("remat2", "checkpoint")


def open_calls(
    jaxpr: Jaxpr, constants: tuple[Any, ...], *, always_barrier: bool = False
) -> tuple[Jaxpr, tuple[Any, ...]]:
    """The flat jaxpr, with more constants if calls closed over arrays; the last inputs are the constants.

    Shardings that calls were given (`jax.jit(step, in_shardings=...)`) are gone: the plan has its own.

    Args:
        always_barrier: keeps what a checkpoint computes again apart from the first time, whatever `prevent_cse` says:
            in the body of a scan the two do not meet, but they do once the scan is opened.
    """
    num_args = len(jaxpr.invars) - len(constants)
    step = Step(jaxpr=jaxpr, constants=constants, arg_parts=((),) * num_args, result_parts=((),) * len(jaxpr.outvars))
    step = inline_calls(step, ignores_shardings=True)
    while any(equation.primitive.name in _CHECKPOINTS for equation in step.jaxpr.eqns):
        closed = _with_barriers(step.jaxpr) if always_barrier else step.jaxpr
        opened = open_in(closed, is_wanted=lambda _: True, with_barrier=True)
        step = inline_calls(replace(step, jaxpr=opened), ignores_shardings=True)
    return step.jaxpr, step.constants


def _with_barriers(jaxpr: Jaxpr) -> Jaxpr:
    equations = [
        equation.replace(params={**equation.params, "prevent_cse": True})
        if equation.primitive.name in _CHECKPOINTS
        else equation
        for equation in jaxpr.eqns
    ]
    return make_jaxpr(jaxpr.invars, equations, jaxpr.outvars)
