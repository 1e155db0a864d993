"""Opens the calls and checkpoints of a jaxpr, so that its equations stand in one list."""

from typing import Any

from jaxquard.ir.inline_calls import inline_calls
from jaxquard.ir.jaxpr_tools import Jaxpr, make_jaxpr
from jaxquard.ir.open_checkpoints import is_checkpoint, open_checkpoints


def open_calls(
    jaxpr: Jaxpr, constants: tuple[Any, ...], *, always_barrier: bool = False
) -> tuple[Jaxpr, tuple[Any, ...]]:
    """Returns the flat jaxpr and its constants, which are its last inputs; calls that closed over arrays add to them.

    Shardings that calls were given (`jax.jit(step, in_shardings=...)`) are dropped: the plan has its own.

    Args:
        always_barrier: keeps what a checkpoint computes again apart from the first time, whatever `prevent_cse` says:
            in the body of a scan the two do not meet, but they do once the scan is opened.
    """
    jaxpr, constants = inline_calls(jaxpr, constants, ignores_shardings=True)
    while any(map(is_checkpoint, jaxpr.eqns)):
        closed = _with_barriers(jaxpr) if always_barrier else jaxpr
        opened = open_checkpoints(closed, with_barrier=True)
        jaxpr, constants = inline_calls(opened, constants, ignores_shardings=True)
    return jaxpr, constants


def _with_barriers(jaxpr: Jaxpr) -> Jaxpr:
    equations = [
        equation.replace(params={**equation.params, "prevent_cse": True}) if is_checkpoint(equation) else equation
        for equation in jaxpr.eqns
    ]
    return make_jaxpr(jaxpr.invars, equations, jaxpr.outvars)
