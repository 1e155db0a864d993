"""Writes the contractions of a block as 2D products: their shards move along the rings of the mesh in slices.

    y = dot_general x w        =>      y = shard_map[MeshSlice, S slices] x w

The forward contraction, its recomputation in a checkpoint, and the two of the backward are written so, each as one of
the three products of a layer whose Y stays (Table 1 of MeshSlice). Their layouts fit each other, so nothing is
transposed between chips. On a chip, the dims of each letter are joined, that which is sharded first: then the shards of
X along one axis and of W along the other have their contracted elements in the same order.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jaxquard.gemm.algorithms.products.batch_axes import shard_mapped
from jaxquard.gemm.algorithms.products.shardings import axes_of
from jaxquard.gemm.layers.resolve_plan import resolve_plan
from jaxquard.gemm.problem import LayerPlan, ProductRole
from jaxquard.intraop.blocks.block import Block
from jaxquard.intraop.blocks.two_dimensional import COLUMNS_2D, ROWS_2D, Dims, layer_dims
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.shardings.layouts import Assignment
from jaxquard.ir.jaxpr_tools import Equation

# The operands of each product, by their letters; a gradient has those of its value.
_OPERANDS = {
    ProductRole.FORWARD: ("MK", "KN", "MN"),
    ProductRole.BACKWARD_DATA: ("MN", "KN", "MK"),
    ProductRole.BACKWARD_WEIGHT: ("MK", "MN", "KN"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EquationProduct:
    """A contraction to be written as a 2D product.

    Attributes:
        inputs, result: the dims of its arrays.
        axes: the mesh axes and their sizes.
        rows_axis, columns_axis: over which the rows and the columns of every matrix are sharded.
        batch_axes: over which those of X and Y are sharded besides; these are major.
    """

    role: ProductRole
    plan: LayerPlan
    inputs: tuple[Dims, Dims]
    result: Dims
    axes: tuple[tuple[str, int], ...]
    rows_axis: str
    columns_axis: str
    batch_axes: tuple[str, ...] = ()

    def write(self, equation: Equation) -> Any:
        """Returns the traced product that stands for an equation."""
        (first, second), (out,) = equation.invars, equation.outvars
        precision = equation.params["precision"]
        types = tuple((atom.aval.shape, atom.aval.dtype) for atom in (first, second, out))
        return _trace(self, types, precision)

    def spec(self, dims: Dims) -> PartitionSpec:
        """Returns the sharding of an array."""
        rows, columns = _letters(dims)
        is_batched = rows == "M" and self.batch_axes
        of_rows = (*self.batch_axes, self.rows_axis) if is_batched else self.rows_axis
        axes = {f"{rows}0": of_rows, f"{columns}0": self.columns_axis}
        return PartitionSpec(*map(axes.get, dims))


def find_products(analysis: Analysis, assignment: Assignment) -> dict[int, EquationProduct]:
    """Returns the contractions that an assignment writes as 2D products, by their positions in the step."""
    found: dict[int, EquationProduct] = {}
    for number, names in assignment.items():
        if ROWS_2D in names:
            found.update(_of_block(analysis, analysis.blocks[number], tuple(names)))
    return found


def _of_block(analysis: Analysis, block: Block, names: tuple[str, ...]) -> Iterator[tuple[int, EquationProduct]]:
    graph = analysis.graph
    axis_of = dict(zip(names, analysis.axes, strict=True))
    dims_of = {seed.position: layer_dims(seed, block.choices, number=number) for number, seed in enumerate(block.seeds)}
    plans = dict(zip(dims_of, analysis.products[block.number], strict=True))
    make = functools.partial(
        EquationProduct,
        axes=tuple(analysis.axes.items()),
        rows_axis=axis_of[ROWS_2D],
        columns_axis=axis_of[COLUMNS_2D],
        batch_axes=tuple(axis for name, axis in axis_of.items() if name not in (ROWS_2D, COLUMNS_2D)),
    )
    for position in analysis.interfaces.positions_of(block.number):
        equation = graph.equations[position]
        if equation.primitive.name != "dot_general":
            continue
        forward = graph.definitions.get(graph.first(equation.outvars[0]))
        matched = analysis.matches.contractions.get(position)
        if forward in dims_of:
            dims = dims_of[forward]
            product = make(role=ProductRole.FORWARD, plan=plans[forward], inputs=dims.inputs, result=dims.result)
            yield position, product
        elif matched is not None and matched.forward in dims_of:
            inputs, result = dims_of[matched.forward].backward(matched)
            yield position, make(role=_role(result), plan=plans[matched.forward], inputs=inputs, result=result)


def _role(result: Dims) -> ProductRole:
    return next(role for role, (_, _, out) in _OPERANDS.items() if out == _letters(result))


def _letters(dims: Dims) -> str:
    """Returns the letters of an array's dims, in the order of its matrix: MK, KN or MN."""
    return "".join(letter for letter in "MKN" if any(name[0] == letter for name in dims))


@functools.lru_cache(maxsize=256)
def _trace(product: EquationProduct, types: Sequence[tuple[tuple[int, ...], Any]], precision: Any) -> Any:
    """Returns the product as a traced function of the equation's inputs; equal layers share it."""
    axes, (*in_types, (out_shape, out_dtype)) = dict(product.axes), types
    is_own_type = all(dtype == out_dtype for _, dtype in in_types)
    layer = resolve_plan(
        product.plan,
        rows=(product.rows_axis,),
        columns=(product.columns_axis,),
        shape=axes,
        precision=precision,
        preferred_element_type=None if is_own_type else out_dtype,
    )
    out_spec = product.spec(product.result)
    local_shape = [
        size // math.prod(axes[axis] for axis in axes_of(entry))
        for size, entry in zip(out_shape, out_spec, strict=True)
    ]

    # Each device of the batch axes has a share of a weight's gradient. The shares stay apart in a first dim, so that a
    # loop over microbatches can add them up by themselves, and over devices once.
    is_sum = product.role is ProductRole.BACKWARD_WEIGHT and bool(product.batch_axes)

    def multiply(first: jax.Array, second: jax.Array) -> jax.Array:
        shards = {
            _letters(dims): _to_matrix(shard, dims) for shard, dims in zip((first, second), product.inputs, strict=True)
        }
        left, right, _ = _OPERANDS[product.role]
        made = layer.multiply(product.role, shards[left], shards[right])
        result = _from_matrix(made, product.result, local_shape).astype(out_dtype)
        return result[None] if is_sum else result

    mapped = shard_mapped(
        multiply,
        mesh=AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes)),
        axes=tuple(axes),
        in_specs=tuple(map(product.spec, product.inputs)),
        out_specs=PartitionSpec(product.batch_axes, *out_spec) if is_sum else out_spec,
    )

    def run(*shards: jax.Array) -> list[jax.Array]:
        found = mapped(*shards)
        return [found.sum(0, dtype=found.dtype) if is_sum else found]

    return jax.make_jaxpr(run)(*(jax.ShapeDtypeStruct(*one) for one in in_types))


def _order(dims: Dims) -> list[int]:
    """Returns the places of an array's dims in its matrix: by letter, that which is sharded first."""
    return sorted(range(len(dims)), key=lambda place: ("MKN".index(dims[place][0]), int(dims[place][1:])))


def _to_matrix(shard: jax.Array, dims: Dims) -> jax.Array:
    rows = _letters(dims)[0]
    moved = shard.transpose(_order(dims))
    num_rows = sum(name[0] == rows for name in dims)
    shape = moved.shape
    return moved.reshape(math.prod(shape[:num_rows]), math.prod(shape[num_rows:]))


def _from_matrix(matrix: jax.Array, dims: Dims, shape: Sequence[int]) -> jax.Array:
    order = _order(dims)
    unjoined = matrix.reshape([shape[place] for place in order])
    return unjoined.transpose([order.index(place) for place in range(len(dims))])
