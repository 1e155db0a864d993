"""Identities that show, in a step on one microbatch, where its loop ends and where the user's marks stand.

    g = accumulate_grads { ... ; d }         g = accumulated[sum] d
    b = pipeline_yield a                =>   b = name[stage end] a

What `accumulated` is applied to is made in the loop, for every microbatch; its result is what all microbatches come to.
The analysis knows both as elementwise. The numbers of results and marks stand in the name stack, where they keep equal
layers equal.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core
from jax.interpreters import mlir

from jaxquard.ir.jaxpr_tools import Equation, Var, new_var, splice
from jaxquard.pipeline.loop import ReduceOp, Reduction
from jaxquard.pipeline.marks import MarkRole

_NAME = "stage end"
_SCOPE = "jaxquard stage end "

accumulated_p = core.Primitive("accumulated")


@accumulated_p.def_abstract_eval
def _type(value: Any, *, reduction: Reduction, num_stacked: int) -> Any:
    if reduction.op is ReduceOp.STACK:
        return value.update(shape=(num_stacked, *value.shape), weak_type=False)
    return value.update(dtype=reduction.dtype, weak_type=False)


@accumulated_p.def_impl
def _run(value: Any, *, reduction: Reduction, num_stacked: int) -> Any:
    """One microbatch is all there is: its value is the sum, the mean, the largest and the last."""
    if reduction.op is ReduceOp.STACK:
        return jnp.broadcast_to(value, (num_stacked, *value.shape))
    return lax.convert_element_type(value, reduction.dtype) if value.dtype != reduction.dtype else jnp.copy(value)


mlir.register_lowering(accumulated_p, mlir.lower_fun(_run, multiple_results=False))


def mark_result(value: Any, reduction: Reduction, *, num_microbatches: int, like: Equation) -> tuple[Equation, Var]:
    """Returns the equation that ends the loop for one of its results, and the result."""
    num_stacked = num_microbatches if reduction.op is ReduceOp.STACK else 0
    result = new_var(_type(value.aval, reduction=reduction, num_stacked=num_stacked))
    build: Any = core.new_jaxpr_eqn
    params = {"reduction": reduction, "num_stacked": num_stacked}
    return build([value], [result], accumulated_p, params, frozenset(), like.source_info, like.ctx), result


def name_marked(equation: Equation, number: int, role: MarkRole) -> list[Equation]:
    """Returns the equations that stand for one mark: a name for each of its values."""
    found = []
    for value, result in zip(equation.invars, equation.outvars, strict=True):
        (made,), _ = splice(lambda array: [checkpoint_name(array, _NAME)], [value])
        names = equation.source_info.name_stack.extend(f"{_SCOPE}{number} {role.value}")
        found.append(
            made.replace(outvars=[result], source_info=equation.source_info.replace(name_stack=names), ctx=equation.ctx)
        )
    return found


def read_mark(equation: Equation) -> tuple[int, MarkRole] | None:
    """Returns the number and the role of the mark that a name stands for; None for all other equations."""
    if equation.primitive.name != "name" or equation.params["name"] != _NAME:
        return None
    scopes = (getattr(scope, "name", "") for scope in reversed(equation.source_info.name_stack.stack))
    found = next((scope for scope in scopes if scope.startswith(_SCOPE)), None)
    if found is None:
        return None
    number, role = found.removeprefix(_SCOPE).split()
    return int(number), MarkRole(role)
