"""Parts of an array, and arrays from parts: only dims that are taken or filled whole are linked."""

from collections.abc import Collection

from jaxquard.ir.dependence.link import Links, links_of
from jaxquard.ir.dependence.relation import Relation
from jaxquard.ir.dependence.rule import Rule, in_shapes, out_shapes
from jaxquard.ir.dependence.rules.elementwise import same_dims
from jaxquard.ir.dependence.rules.reductions import kept_dims
from jaxquard.ir.jaxpr_tools import Equation


def other_dims(shape: tuple[int, ...], unlinked: Collection[int]) -> Links:
    """Each dim with itself, less some."""
    return links_of((dim, dim, size) for dim, size in enumerate(shape) if dim not in unlinked)


def _slice(equation: Equation) -> Relation:
    """A dim of the same size was taken whole: strides make it smaller, unless it has one element."""
    return ((same_dims(out_shapes(equation)[0], in_shapes(equation)[0]),),)


def _dynamic_slice(equation: Equation) -> Relation:
    taken = same_dims(out_shapes(equation)[0], in_shapes(equation)[0])
    return ((taken,) + ((),) * (len(equation.invars) - 1),)


def _dynamic_update_slice(equation: Equation) -> Relation:
    operand, update, *starts = in_shapes(equation)
    filled = same_dims(operand, update)
    return ((filled, filled) + ((),) * len(starts),)


def _concatenate(equation: Equation) -> Relation:
    return (tuple(other_dims(shape, (equation.params["dimension"],)) for shape in in_shapes(equation)),)


def _stack(equation: Equation) -> Relation:
    new = equation.params["axis"]
    row = (
        links_of((dim if dim < new else dim + 1, dim, size) for dim, size in enumerate(shape))
        for shape in in_shapes(equation)
    )
    return (tuple(row),)


def _unstack(equation: Equation) -> Relation:
    return ((kept_dims(in_shapes(equation)[0], (equation.params["axis"],)),),) * len(equation.outvars)


def _split(equation: Equation) -> Relation:
    return ((other_dims(in_shapes(equation)[0], (equation.params["axis"],)),),) * len(equation.outvars)


def _pad(equation: Equation) -> Relation:
    padded = [dim for dim, amounts in enumerate(equation.params["padding_config"]) if tuple(amounts) != (0, 0, 0)]
    return ((other_dims(in_shapes(equation)[0], padded), ()),)


RULES: dict[str, Rule] = {
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "split": _split,
    "pad": _pad,
}
