"""Values that follow from sizes alone: numbers in the code, positions (`iota`), and what is computed from them.

No rule could say their law: positions in a whole batch are not those in its parts. So they are evaluated in numpy
when a rule asks for them, if they are small, or one number throughout.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxquard.ir.jaxpr_tools import Equation
from jaxquard.ir.rows.law import SAME, ZERO, Law, constant_rows, mixed, row_dim, rows

# Elements of a value that is evaluated at most.
_MOST_ELEMENTS = 1 << 18
_ARRAYS = np.ndarray | np.generic | jax.Array | int | float | bool | complex

Values = tuple[np.ndarray, np.ndarray]


class Known:
    """A value that both jaxprs know, for the whole batch and for a part.

    Attributes:
        is_same: it is the same in both.
        fill: the number that it is throughout, in the whole and in a part; None if it has several.
    """

    __slots__ = ("_make", "_values", "fill", "is_same")

    def __init__(
        self, *, is_same: bool, fill: tuple[Any, Any] | None = None, make: Callable[[], Values | None] | None = None
    ) -> None:
        self.is_same, self.fill, self._make = is_same, fill, make
        self._values: Values | None = None

    @property
    def is_mixed(self) -> bool:
        return False

    def values(self) -> Values | None:
        """Returns the arrays of the whole and of a part; None if they are too large, or nobody knows how."""
        if self._values is None and self._make is not None:
            self._values, self._make = self._make(), None
        return self._values


def of_values(whole: Any, part: Any) -> Known:
    """Returns what is known of a constant or a literal."""
    if not all(isinstance(value, _ARRAYS) and _is_small(value) for value in (whole, part)):
        return Known(is_same=whole is part)
    pair = np.asarray(whole), np.asarray(part)
    is_same = pair[0].shape == pair[1].shape and bool(np.array_equal(*pair, equal_nan=_has_nan(pair[0])))
    fill = (pair[0][()], pair[1][()]) if pair[0].shape == pair[1].shape == () else None
    return Known(is_same=is_same, fill=fill, make=lambda: pair)


def _is_small(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return (dtype is None or isinstance(dtype, np.dtype)) and np.size(value) <= _MOST_ELEMENTS


def _has_nan(array: np.ndarray) -> bool:
    return array.dtype.kind in "fc"


def _is_number(dtype: Any) -> bool:
    return dtype.kind in "fiu" or dtype.name == "bfloat16"


def law_of(known: Known, shapes: tuple[Sequence[int], Sequence[int]], num_parts: int, equation: Equation | None) -> Law:
    """Returns the law that the values follow.

    Args:
        equation: that reads them.
    """
    whole, part = shapes
    has_dim = row_dim(whole, part, num_parts)
    if known.fill is not None:
        scale = _ratio(np.asarray(known.fill[0]), np.asarray(known.fill[1]), num_parts)
        if scale is not None:
            if scale == 0:
                return ZERO
            if tuple(whole) == tuple(part):
                return SAME.scaled(scale)
            return mixed(equation, "has two dims with the rows") if has_dim is None else constant_rows(has_dim, scale)
        return mixed(equation, "depends on the number of rows in a way that is no ratio")
    if known.is_same:
        return SAME
    values = known.values()
    if values is None:
        return mixed(equation, "computes with positions of rows in their batch, and with too many of them to look at")
    if tuple(whole) == tuple(part):
        scale = _ratio(*values, num_parts)
        if scale is not None:
            return ZERO if scale == 0 else SAME.scaled(scale)
    elif has_dim is not None:
        tiles = values[0].reshape((*part[:has_dim], num_parts, part[has_dim], *part[has_dim + 1 :]))
        scale = _ratio(tiles, np.broadcast_to(np.expand_dims(values[1], has_dim), tiles.shape), num_parts)
        if scale is not None:
            first = np.take(values[1], [0], axis=has_dim)
            is_constant = bool(np.array_equal(np.broadcast_to(first, values[1].shape), values[1]))
            return ZERO if scale == 0 else rows(has_dim, scale=scale, outer=None if is_constant else 1)
    return mixed(equation, "computes with the position of a row in its batch, which differs in every microbatch")


def _ratio(whole: np.ndarray, part: np.ndarray, num_parts: int) -> float | None:
    """Returns how many times as large the whole is: 1 for equal values, 0 for zeros, None for no such number."""
    if np.array_equal(whole, part, equal_nan=_has_nan(whole)):
        return 0.0 if not np.any(whole) else 1.0
    if not _is_number(whole.dtype):
        return None
    one, other = whole.astype(np.float64), part.astype(np.float64)
    if not (np.isfinite(one).all() and np.isfinite(other).all()) or not other.any():
        return None
    place = np.unravel_index(np.argmax(np.abs(other)), other.shape)
    scale = float(one[place] / other[place])
    error = _rounding(whole.dtype)
    for power in range(-3, 4):
        if abs(scale / float(num_parts) ** power - 1) <= error:
            scale = float(num_parts) ** power
    close = np.abs(one - scale * other) <= error * np.abs(one)
    return scale if scale and close.all() else None


def _rounding(dtype: Any) -> float:
    if dtype.kind in "iub":
        return 0.0
    if dtype.name == "bfloat16":
        return 2.0**-9
    return 2.0 * float(np.finfo(dtype).eps)


def evaluate_known(whole: Equation, part: Equation, operands: Sequence[Known]) -> Known | None:
    """Returns what an equation makes of known values; None if it is too large, or nobody knows how to evaluate it."""
    name = whole.primitive.name
    rule = _EVALUATE.get(name)
    shapes = whole.outvars[0].aval.shape, part.outvars[0].aval.shape
    is_same = all(known.is_same for known in operands) and shapes[0] == shapes[1] and _same_params(whole, part)
    if rule is None:
        return None
    if len(operands) > 0 and all(known.fill is not None for known in operands) and name in _KEEPS_FILL:
        fills: list[Any] = []
        for number, equation in enumerate((whole, part)):
            arrays = [np.asarray(known.fill[number]) for known in operands if known.fill is not None]
            fills.append(_fill_of(equation, arrays))
        return Known(is_same=is_same, fill=(fills[0], fills[1]), make=lambda: _full(whole, part, fills))

    if math.prod(shapes[0]) > _MOST_ELEMENTS:
        return None

    def make() -> Values | None:
        arrays = [known.values() for known in operands]
        if any(pair is None for pair in arrays):
            return None
        found = []
        for number, equation in enumerate((whole, part)):
            inputs = [pair[number] for pair in arrays if pair is not None]
            found.append(np.asarray(_run(rule, equation, inputs)))
        return found[0], found[1]

    return Known(is_same=is_same, make=make)


def _run(rule: Callable[..., Any], equation: Equation, inputs: Sequence[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        found = np.asarray(rule(equation, *inputs))
    aval = equation.outvars[0].aval
    return np.broadcast_to(found.astype(aval.dtype), aval.shape)


def _fill_of(equation: Equation, inputs: Sequence[np.ndarray]) -> Any:
    name = equation.primitive.name
    dtype = equation.outvars[0].aval.dtype
    if name in _MOVES:
        return inputs[0][()]
    with np.errstate(all="ignore"):
        return np.asarray(_EVALUATE[name](equation, *inputs)).astype(dtype)[()]


def _full(whole: Equation, part: Equation, fills: Sequence[Any]) -> Values | None:
    if math.prod(whole.outvars[0].aval.shape) > _MOST_ELEMENTS:
        return None
    full = [np.full(e.outvars[0].aval.shape, fill) for e, fill in zip((whole, part), fills, strict=True)]
    return full[0], full[1]


def _same_params(whole: Equation, part: Equation) -> bool:
    return all(str(value) == str(part.params.get(name)) for name, value in whole.params.items())


def _iota(equation: Equation) -> np.ndarray:
    shape, dim = equation.params["shape"], equation.params["dimension"]
    along = [1] * len(shape)
    along[dim] = shape[dim]
    return np.broadcast_to(np.arange(shape[dim]).reshape(along), shape)


def _broadcast(equation: Equation, array: np.ndarray) -> np.ndarray:
    shape = equation.params["shape"]
    placed = [1] * len(shape)
    for dim, to in enumerate(equation.params["broadcast_dimensions"]):
        placed[to] = array.shape[dim]
    return np.broadcast_to(array.reshape(placed), shape)


def _select(equation: Equation, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    del equation
    found = cases[0]
    for number, case in enumerate(cases[1:], start=1):
        found = np.where(which == number, case, found)
    return found


def _slice(equation: Equation, array: np.ndarray) -> np.ndarray:
    params = equation.params
    strides = params["strides"] or (1,) * array.ndim
    places = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return array[tuple(slice(*place) for place in places)]


def _divide(equation: Equation, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    del equation
    if one.dtype.kind in "iu":
        return np.where(other == 0, -1, np.trunc(one / np.where(other == 0, 1, other))).astype(one.dtype)
    return one / other


def _to_float(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind in "iu" else array.astype(np.float64)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda equation, *inputs: function(*inputs)


_EVALUATE: dict[str, Callable[..., Any]] = {
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "select_n": _select,
    "slice": _slice,
    "div": _divide,
    "reshape": lambda equation, array: array.reshape(equation.outvars[0].aval.shape),
    "squeeze": lambda equation, array: array.reshape(equation.outvars[0].aval.shape),
    "transpose": lambda equation, array: array.transpose(equation.params["permutation"]),
    "rev": lambda equation, array: np.flip(array, equation.params["dimensions"]),
    "concatenate": lambda equation, *arrays: np.concatenate(arrays, axis=equation.params["dimension"]),
    "integer_pow": lambda equation, array: _to_float(array) ** equation.params["y"],
    "convert_element_type": _plain(lambda array: array),
    "stop_gradient": _plain(lambda array: array),
    "copy": _plain(lambda array: array),
    "copy_p": _plain(lambda array: array),
    "add": _plain(np.add),
    "add_any": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "neg": _plain(np.negative),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "floor": _plain(np.floor),
    "sqrt": _plain(np.sqrt),
    "rsqrt": _plain(lambda array: 1 / np.sqrt(array)),
    "square": _plain(np.square),
    "log": _plain(np.log),
    "abs": _plain(np.abs),
    "sign": _plain(np.sign),
    "rem": _plain(np.fmod),
    "lt": _plain(np.less),
    "le": _plain(np.less_equal),
    "gt": _plain(np.greater),
    "ge": _plain(np.greater_equal),
    "eq": _plain(np.equal),
    "ne": _plain(np.not_equal),
    "and": _plain(np.bitwise_and),
    "or": _plain(np.bitwise_or),
    "not": _plain(np.invert),
    "clamp": _plain(lambda low, array, high: np.clip(array, low, high)),
}
_MOVES = frozenset({"broadcast_in_dim", "reshape", "squeeze", "transpose", "rev", "slice"})
# One number throughout stays one.
_KEEPS_FILL = frozenset(_EVALUATE) - {"iota", "concatenate"}
