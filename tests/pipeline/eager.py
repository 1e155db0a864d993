"""Evaluates code operation by operation, the simplest with numpy: JAX would compile each of them for each shape."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend import core

from jaxquard.ir import jaxpr_tools
from jaxquard.ir.jaxpr_tools import copy_equation, is_var, make_jaxpr, new_var


def _broadcast_in_dim(x: np.ndarray, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any) -> Any:
    if list(broadcast_dimensions) != sorted(broadcast_dimensions):
        return None
    kept = [1] * len(shape)
    for size, dim in zip(x.shape, broadcast_dimensions, strict=True):
        kept[dim] = size
    return np.broadcast_to(x.reshape(kept), shape)


def _slice(x: np.ndarray, *, start_indices: Any, limit_indices: Any, strides: Any) -> np.ndarray:
    return x[tuple(map(slice, start_indices, limit_indices, strides or (None,) * x.ndim))]


# Both give the same bits as XLA.
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "sqrt": np.sqrt,
    "square": np.square,
    "sub": np.subtract,
}
# A rule returns None for what it leaves to JAX.
RULES: dict[str, Callable[..., Any]] = {
    **{name: lambda *inputs, function=function, **_: function(*inputs) for name, function in _ELEMENTWISE.items()},
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": lambda *parts, dimension: np.concatenate(parts, axis=dimension),
    "convert_element_type": lambda x, *, new_dtype, **_: x.astype(new_dtype) if new_dtype.kind == "f" else None,
    "div": lambda x, y: x / y if x.dtype.kind == "f" else None,
    "integer_pow": lambda x, *, y: x * x if y == 2 else None,
    "reshape": lambda x, *, new_sizes, dimensions, **_: x.reshape(new_sizes) if dimensions is None else None,
    "select_n": lambda which, *cases: np.where(which, *cases[::-1]) if which.dtype == bool else None,
    "slice": _slice,
    "squeeze": lambda x, *, dimensions: np.squeeze(x, tuple(dimensions)),
    "transpose": lambda x, *, permutation: np.transpose(x, permutation),
}


def evaluate(closed: core.ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """Returns the results of code, as numpy or JAX arrays."""
    jaxpr = closed.jaxpr
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *args), strict=True))

    def read(atom: Any) -> Any:
        return values[atom] if is_var(atom) else np.asarray(atom.val, atom.aval.dtype)

    for equation in jaxpr.eqns:
        results = _evaluate_equation(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _evaluate_equation(equation: Any, inputs: list[Any]) -> list[Any]:
    if equation.primitive.name in ("jit", "pjit"):
        return evaluate(equation.params["jaxpr"], inputs)
    rule = RULES.get(equation.primitive.name)
    result = None
    if rule is not None and all(_is_plain(atom.aval) for atom in (*equation.invars, *equation.outvars)):
        with np.errstate(all="ignore"):
            result = rule(*map(np.asarray, inputs), **equation.params)
    if result is None:
        return _evaluate_with_jax(equation, inputs)
    (output,) = equation.outvars
    assert (result.shape, result.dtype) == (output.aval.shape, output.aval.dtype), equation.primitive.name
    return [result]


def _is_plain(aval: Any) -> bool:
    """Says whether numpy has the type; it has no keys, and bfloat16 only by an extension."""
    return hasattr(aval.dtype, "kind") and aval.dtype.kind in "biuf"


def _evaluate_with_jax(equation: Any, inputs: list[Any]) -> list[Any]:
    alone = copy_equation(equation, [new_var(atom) for atom in equation.invars])
    return jaxpr_tools.evaluate(make_jaxpr(alone.invars, [alone], alone.outvars))(*inputs)
