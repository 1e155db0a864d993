"""Operations that only rearrange: reshape, transpose, broadcast and their kin (Table 1)."""

from math import gcd, prod

from jaxquard.ir.dependence.link import Links, links_of
from jaxquard.ir.dependence.relation import Relation
from jaxquard.ir.dependence.rule import Rule, in_shapes, out_shapes
from jaxquard.ir.dependence.rules.elementwise import same_dims
from jaxquard.ir.jaxpr_tools import Equation


def reshape_links(out_shape: tuple[int, ...], in_shape: tuple[int, ...]) -> Links:
    """Links of a reshape: in each group of dims, the major one with the major one.

    A group is a shortest run of dims on both sides with the same product. Its major dims keep in step
    for as many chunks as divide both; the minor ones stride. Dims of size 1 belong to no group.
    """
    if prod(out_shape) == 0:
        return ()
    outs = [(dim, size) for dim, size in enumerate(out_shape) if size > 1]
    ins = [(dim, size) for dim, size in enumerate(in_shape) if size > 1]
    found = []
    while outs:
        (out_dim, out_size), (in_dim, in_size) = outs.pop(0), ins.pop(0)
        found.append((out_dim, in_dim, gcd(out_size, in_size)))
        while out_size != in_size:
            if out_size < in_size:
                out_size *= outs.pop(0)[1]
            else:
                in_size *= ins.pop(0)[1]
    return links_of(found)


def _reshape(equation: Equation) -> Relation:
    if equation.params.get("dimensions") is not None:
        return (((),) * len(equation.invars),)
    return ((reshape_links(out_shapes(equation)[0], in_shapes(equation)[0]),),)


def _transpose(equation: Equation) -> Relation:
    shape = in_shapes(equation)[0]
    return ((links_of((to, dim, shape[dim]) for to, dim in enumerate(equation.params["permutation"])),),)


def _broadcast_in_dim(equation: Equation) -> Relation:
    out_shape, shape = out_shapes(equation)[0], in_shapes(equation)[0]
    placed = enumerate(equation.params["broadcast_dimensions"])
    row = (links_of((to, dim, shape[dim]) for dim, to in placed if shape[dim] == out_shape[to]),)
    return (row + ((),) * (len(equation.invars) - 1),)


def _squeeze(equation: Equation) -> Relation:
    shape = in_shapes(equation)[0]
    kept = [dim for dim in range(len(shape)) if dim not in equation.params["dimensions"]]
    return ((links_of((to, dim, shape[dim]) for to, dim in enumerate(kept)),),)


def _rev(equation: Equation) -> Relation:
    """A reversed dim takes run q from the other end."""
    shape, reversed_dims = in_shapes(equation)[0], equation.params["dimensions"]
    return ((links_of((dim, dim, size) for dim, size in enumerate(shape) if dim not in reversed_dims),),)


def _tile(equation: Equation) -> Relation:
    return ((same_dims(out_shapes(equation)[0], in_shapes(equation)[0]),),)


def _bitcast(equation: Equation) -> Relation:
    """Between types of other widths, the last dim appears or goes; the others stay."""
    out_shape, shape = out_shapes(equation)[0], in_shapes(equation)[0]
    rank = min(len(out_shape), len(shape))
    return ((same_dims(out_shape[:rank], shape[:rank]),),)


RULES: dict[str, Rule] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast_in_dim,
    "squeeze": _squeeze,
    "rev": _rev,
    "tile": _tile,
    "bitcast_convert_type": _bitcast,
}
