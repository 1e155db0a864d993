"""The ways in which an equation can be partitioned over a mesh axis, and the work that it does.

parallel    along a dim of its result, with the dims of its inputs that are linked to it (`ir.dependence`)
summed      along a dim that it sums over: each device has a part of the sum

primitive       sums over
dot_general     contracted dims
ragged_dot      contracted dims but the ragged one: which rows meet which weights is known at run time only
convolution     input features; the spatial dim of both inputs, as for the gradient of a kernel
reduce_...      reduced dims
gather          the dim of the table that is looked up: other devices add zeros
scatter-add     the dims of the updates that are added into the same places

A convolution is also partitioned along its first spatial dim. The rows that a window reaches beyond a shard come from
its neighbours; they are few, and not counted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxquard.ir.dependence import Dependences
from jaxquard.ir.jaxpr_tools import Equation

# The primitive's name in all versions of JAX.
SCATTER_ADDS = ("scatter-add", "scatter_add")


@dataclass(frozen=True, slots=True, kw_only=True)
class EquationPartition:
    """One way to partition an equation over a mesh axis.

    Attributes:
        out_dims: for each output, the dim that is sharded; None: replicated, or a part of a sum.
        in_dims: for each input, the same.
        num_chunks: it can be split into so many parts, or any divisor of that.
        is_summed: whether the outputs are parts of sums.
        letter: of a product, the dim of it that is sharded: "b", "m", "n" or "k".
    """

    out_dims: tuple[int | None, ...]
    in_dims: tuple[int | None, ...]
    num_chunks: int
    is_summed: bool = False
    letter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductSizes:
    """The sizes of a matrix product: `batch` times [m, k] by [k, n]."""

    batch: int
    m: int
    k: int
    n: int
    has_batch_dims: bool = field(default=False)

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.k * self.n


def find_partitions(equation: Equation, links: Dependences) -> tuple[EquationPartition, ...]:
    """Returns the ways to partition an equation, without the one that partitions nothing."""
    letters = _product_letters(equation)
    found = [*_parallel(equation, links, letters), *_spatial(equation)]
    summed = _SUMMED.get(equation.primitive.name) or (_reduced if _is_reduction(equation) else None)
    if summed is not None:
        none = (None,) * len(equation.outvars)
        for in_dims in summed(equation):
            size = _size(equation, in_dims)
            found.append(EquationPartition(out_dims=none, in_dims=in_dims, num_chunks=size, is_summed=True, letter="k"))
    return tuple(found)


def product_sizes(equation: Equation) -> ProductSizes | None:
    """Returns the sizes of a product; None for anything else."""
    find = _SIZES.get(equation.primitive.name)
    return None if find is None else find(equation)


def _is_reduction(equation: Equation) -> bool:
    return equation.primitive.name.startswith(("reduce_", "arg")) and "axes" in equation.params


def _parallel(equation: Equation, links: Dependences, letters: dict[int, str]) -> list[EquationPartition]:
    """Returns the partitions along the dims of the first output, with all that is linked to it."""
    found = []
    if not equation.outvars:
        return found
    for dim in range(len(getattr(equation.outvars[0].aval, "shape", ()))):
        in_dims, chunks = _linked(links.links[0], dim)
        if not chunks:
            continue
        out_dims: list[int | None] = [dim]
        for of_output in links.links[1:]:
            others = {
                link.in_dim: link.out_dim
                for place, of in enumerate(of_output)
                for link in of
                if link.in_dim == in_dims[place]
            }
            out_dims.append(next((others[d] for d in in_dims if d is not None and d in others), None))
        found.append(
            EquationPartition(
                out_dims=tuple(out_dims), in_dims=in_dims, num_chunks=math.gcd(*chunks), letter=letters.get(dim, "m")
            )
        )
    return found


def _spatial(equation: Equation) -> list[EquationPartition]:
    if equation.primitive.name != "conv_general_dilated":
        return []
    numbers = equation.params["dimension_numbers"]
    return [
        EquationPartition(
            out_dims=(out_dim,),
            in_dims=(in_dim, None),
            num_chunks=math.gcd(equation.invars[0].aval.shape[in_dim], equation.outvars[0].aval.shape[out_dim]),
            letter="m",
        )
        for in_dim, out_dim in zip(numbers.lhs_spec[2:3], numbers.out_spec[2:3], strict=True)
    ]


def _linked(links: Any, dim: int) -> tuple[tuple[int | None, ...], list[int]]:
    in_dims, chunks = [], []
    for of_input in links:
        link = next((link for link in of_input if link.out_dim == dim), None)
        in_dims.append(None if link is None else link.in_dim)
        chunks += [] if link is None else [link.num_chunks]
    return tuple(in_dims), chunks


def _size(equation: Equation, in_dims: tuple[int | None, ...]) -> int:
    return next(atom.aval.shape[dim] for atom, dim in zip(equation.invars, in_dims, strict=True) if dim is not None)


def _product_letters(equation: Equation) -> dict[int, str]:
    """Returns the letter of each dim of a product's result."""
    name = equation.primitive.name
    if name == "dot_general":
        (contracted, _), (batch, _) = equation.params["dimension_numbers"]
        num_left = len(equation.invars[0].aval.shape) - len(contracted)
        rank = len(equation.outvars[0].aval.shape)
        return {dim: "b" if dim < len(batch) else "m" if dim < num_left else "n" for dim in range(rank)}
    if name == "conv_general_dilated":
        out_spec = equation.params["dimension_numbers"].out_spec
        return {dim: "n" if place == 1 else "m" for place, dim in enumerate(out_spec)}
    if name == "ragged_dot_general":
        rank = len(equation.outvars[0].aval.shape)
        return {rank - 2: "m", rank - 1: "n"}
    return {}


def _contracted(equation: Equation) -> list[tuple[int | None, ...]]:
    return list(zip(*equation.params["dimension_numbers"][0], strict=True))


def _ragged_contracted(equation: Equation) -> list[tuple[int | None, ...]]:
    numbers = equation.params["ragged_dot_dimension_numbers"]
    pairs = zip(*numbers.dot_dimension_numbers[0], strict=True)
    others = (None,) * (len(equation.invars) - 2)
    return [(*pair, *others) for pair in pairs if pair[0] not in numbers.lhs_ragged_dimensions]


def _features(equation: Equation) -> list[tuple[int | None, ...]]:
    params = equation.params
    if params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
        return []
    numbers = params["dimension_numbers"]
    (lhs, rhs), (left, right) = (numbers.lhs_spec, numbers.rhs_spec), (atom.aval.shape for atom in equation.invars)
    spatial = [pair for pair in zip(lhs[2:3], rhs[2:3], strict=True) if left[pair[0]] == right[pair[1]]]
    return [(lhs[1], rhs[1]), *spatial]


def _reduced(equation: Equation) -> list[tuple[int | None, ...]]:
    return [(axis,) * len(equation.invars) for axis in equation.params["axes"]]


def _looked_up(equation: Equation) -> list[tuple[int | None, ...]]:
    numbers = equation.params["dimension_numbers"]
    return [(dim, None) for dim in numbers.collapsed_slice_dims]


def _added(equation: Equation) -> list[tuple[int | None, ...]]:
    """Returns the dims of the indices that are no dims of the result, with those of the updates."""
    numbers = equation.params["dimension_numbers"]
    updates = equation.invars[2].aval.shape
    batch = [dim for dim in range(len(updates)) if dim not in numbers.update_window_dims]
    return [(None, place, dim) for place, dim in enumerate(batch) if place not in numbers.scatter_indices_batching_dims]


_SUMMED: dict[str, Callable[[Equation], list[tuple[int | None, ...]]]] = {
    "dot_general": _contracted,
    "ragged_dot_general": _ragged_contracted,
    "conv_general_dilated": _features,
    "gather": _looked_up,
    **dict.fromkeys(SCATTER_ADDS, _added),
}


def _dot_sizes(equation: Equation) -> ProductSizes:
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    left, right = (atom.aval.shape for atom in equation.invars[:2])
    num_batch = math.prod(left[dim] for dim in batch)
    depth = math.prod(left[dim] for dim in contracted)
    return ProductSizes(
        batch=num_batch,
        m=math.prod(left) // max(1, num_batch * depth),
        k=depth,
        n=math.prod(right) // max(1, num_batch * depth),
        has_batch_dims=bool(batch),
    )


def _convolution_sizes(equation: Equation) -> ProductSizes:
    params = equation.params
    numbers = params["dimension_numbers"]
    right, out = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
    groups = params["feature_group_count"] * params["batch_group_count"]
    features = out[numbers.out_spec[1]]
    return ProductSizes(
        batch=groups,
        m=math.prod(out) // features,
        k=math.prod(right) // right[numbers.rhs_spec[0]],
        n=max(1, features // groups),
    )


def _ragged_sizes(equation: Equation) -> ProductSizes:
    """Returns the sizes of one product for each group, as if all groups had as many rows."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    num_groups = equation.invars[2].aval.shape[-1]
    depth = math.prod(left[dim] for dim in contracted)
    rows = math.prod(left) // max(1, depth)
    is_summed = numbers.lhs_ragged_dimensions[0] in contracted
    columns = max(1, math.prod(out) // max(1, rows * (num_groups if is_summed else 1)))
    each = max(1, (depth if is_summed else rows) // num_groups)
    return ProductSizes(batch=num_groups, m=rows if is_summed else each, k=each if is_summed else depth, n=columns)


_SIZES: dict[str, Callable[[Equation], ProductSizes]] = {
    "dot_general": _dot_sizes,
    "conv_general_dilated": _convolution_sizes,
    "ragged_dot_general": _ragged_sizes,
}
