"""Reductions over dims: `*` for those that go, the others linked."""

from collections.abc import Collection

from jaxquard.ir.dependence.link import Links, links_of
from jaxquard.ir.dependence.relation import Relation
from jaxquard.ir.dependence.rule import Rule, for_each, in_shapes
from jaxquard.ir.jaxpr_tools import Equation


def kept_dims(shape: tuple[int, ...], dropped: Collection[int]) -> Links:
    """The dims that stay, in their order, with the outputs' dims."""
    kept = [dim for dim in range(len(shape)) if dim not in dropped]
    return links_of((to, dim, shape[dim]) for to, dim in enumerate(kept))


def _reduce_axes(equation: Equation) -> Relation:
    return ((kept_dims(in_shapes(equation)[0], equation.params["axes"]),),)


def _reduce(equation: Equation) -> Relation:
    """The general one: operands, then a first value for each; any output may need all of them."""
    shapes, num_outputs = in_shapes(equation), len(equation.outvars)
    operands = tuple(kept_dims(shape, equation.params["dimensions"]) for shape in shapes[:num_outputs])
    return (operands + ((),) * (len(shapes) - num_outputs),) * num_outputs


_OVER_AXES = """
    argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor
"""

RULES: dict[str, Rule] = for_each(_OVER_AXES, _reduce_axes) | {"reduce": _reduce}
