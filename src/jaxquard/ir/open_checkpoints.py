"""Opens checkpoints (`jax.checkpoint`), so that what they recompute stands among the other equations.

    b, c = remat2[jaxpr={ recompute ; gradients }] w a t
    =>
    d, e = optimization_barrier a t ; recompute w d ; b, c = gradients

The barrier is the one that JAX itself sets, against merging the recomputation with the forward.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from jax import lax

from jaxquard.ir.inline_calls import CallOpener
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


def is_checkpoint(equation: Equation) -> bool:
    """Returns True for a `jax.checkpoint`."""
    return equation.primitive.name in ("remat2", "checkpoint")


def is_transposed(equation: Equation) -> bool:
    """Returns True for an equation that JAX made by transposing: it belongs to a backward."""
    return next(_differentiations(equation), "") == "transpose"


def is_inner_gradient(equation: Equation) -> bool:
    """Returns True for an equation of a gradient that is differentiated in turn: of a gradient penalty, say."""
    found = list(_differentiations(equation))
    return found[:1] == ["jvp"] and "transpose" in found


def _differentiations(equation: Equation) -> Iterator[str]:
    """Yields "jvp" and "transpose" as JAX applied them, the outermost first."""
    for scope in equation.source_info.name_stack.stack:
        if getattr(scope, "name", "") in ("jvp", "transpose") and type(scope).__name__ == "Transform":
            yield scope.name


def open_checkpoints(
    jaxpr: Jaxpr,
    *,
    is_wanted: Callable[[Equation], bool] = lambda equation: True,
    with_barrier: bool,
    constants: Collection[Var] = (),
) -> Jaxpr:
    """Opens the checkpoints of a jaxpr.

    Calls inside them that close over arrays stay closed: the jaxpr gets no further inputs.

    Args:
        jaxpr: the jaxpr.
        is_wanted: selects the checkpoints to open.
        with_barrier: keeps the recomputation apart from the forward where the checkpoint asks for it.
        constants: variables that never go through a barrier.
    """
    renamed: dict[Var, Any] = {}
    equations: list[Equation] = []
    for equation in jaxpr.eqns:
        moved = rename(equation, renamed)
        if not is_checkpoint(equation) or not is_wanted(equation):
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
