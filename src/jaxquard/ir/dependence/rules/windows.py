"""Sliding windows: dims with a window of one element, not moved and not padded, are linked."""

from jaxquard.ir.dependence.relation import Relation
from jaxquard.ir.dependence.rule import Rule, for_each, in_shapes
from jaxquard.ir.dependence.rules.slices import other_dims
from jaxquard.ir.jaxpr_tools import Equation


def _windowed_dims(equation: Equation) -> list[int]:
    params = equation.params
    rank = len(params["window_dimensions"])
    still = (1,) * rank
    windows = zip(
        params["window_dimensions"],
        params["window_strides"],
        params.get("base_dilation", still),
        params["padding"],
        strict=True,
    )
    return [
        dim
        for dim, (size, stride, dilation, padding) in enumerate(windows)
        if (size, stride, dilation, *padding) != (1, 1, 1, 0, 0)
    ]


def _reduce_window(equation: Equation) -> Relation:
    """Arrays, and a first value for each where the reduction is general: scalars, which have no links."""
    windowed = _windowed_dims(equation)
    row = tuple(other_dims(shape, windowed) for shape in in_shapes(equation))
    return (row,) * len(equation.outvars)


_WINDOWED = """
    reduce_window reduce_window_max reduce_window_min reduce_window_sum
    select_and_gather_add select_and_scatter select_and_scatter_add
"""

RULES: dict[str, Rule] = for_each(_WINDOWED, _reduce_window)
