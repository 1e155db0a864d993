"""Writes products of rows that are sorted by expert (`lax.ragged_dot`) so that their rows can be sharded.

    y = ragged_dot x w sizes        =>      y = shard_map[x and y sharded by rows] x w sizes

Which expert a row meets is known at run time only, so XLA gathers the rows, and every device multiplies all of them
(seen for H100s; on CPUs it makes a dense product of all rows with all experts first, and shards that). Here every
device takes its run of the sorted rows, and of every expert as many rows as lie in it:

    experts  0 0 0 1 1 2 2 2        sizes 3 2 3
    device   0 0 0 0 1 1 1 1        sizes on 0: 3 1 0      on 1: 0 1 3

The numbers are those of one device. The gradient of the weights is added up over the devices that share the rows; the
columns and the contracted dim of the weights may be sharded over other axes.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jaxquard.intraop.blocks.block import Block
from jaxquard.intraop.blocks.contraction import PartitionKind, ragged_dims
from jaxquard.intraop.blocks.find_blocks import SCATTERED
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.shardings.layouts import Assignment
from jaxquard.ir.jaxpr_tools import Equation

# The letter of the dim of a product that a partition shards; groups, G, are whole.
_LETTERS = {PartitionKind.ROWS: "M", PartitionKind.COLUMNS: "N", PartitionKind.CONTRACTED: "K"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedProduct:
    """A product of sorted rows to be written for shards of them.

    Attributes:
        inputs, result: the letters of the dims of its arrays: `MK`, `GKN` and `MN` for the forward.
        axes: the mesh axes and their sizes.
        sharded: for each letter, the axes that shard its dim.
        scattered: the axes over which the forward's result is added up and ends sharded by columns; backward products
            gather its gradient over them.
    """

    inputs: tuple[str, str]
    result: str
    axes: tuple[tuple[str, int], ...]
    sharded: tuple[tuple[str, tuple[str, ...]], ...]
    scattered: tuple[str, ...] = ()

    def write(self, equation: Equation) -> Any:
        """Returns the traced product that stands for an equation."""
        types = tuple((atom.aval.shape, atom.aval.dtype) for atom in equation.invars)
        return _trace(self, types, equation.primitive, tuple(equation.params.items()))

    def spec(self, dims: str) -> PartitionSpec:
        """Returns the sharding of an array; that of the forward's result, and of its gradient, has rows and columns."""
        sharded = dict(self.sharded)
        if set(dims) == set("MN"):
            sharded["N"] = (*sharded.get("N", ()), *self.scattered)
        return PartitionSpec(*(sharded.get(letter) or None for letter in dims))

    @property
    def summed(self) -> tuple[str, ...]:
        """The axes over which the shards of the result are added up."""
        letters = set("".join(self.inputs)) - set(self.result)
        axes = (axis for letter, of_letter in self.sharded if letter in letters for axis in of_letter)
        return tuple(axis for axis in axes if not (self.is_forward and axis in self.scattered))

    @property
    def is_forward(self) -> bool:
        return set(self.result) == set("MN")


def find_ragged(analysis: Analysis, assignment: Assignment) -> dict[int, RaggedProduct]:
    """Returns the products of sorted rows that an assignment shards by rows, by their positions in the step."""
    found: dict[int, RaggedProduct] = {}
    for number, names in assignment.items():
        block = analysis.blocks[number]
        if "rows" in names and any(seed.is_ragged for seed in block.seeds):
            found.update(_of_block(analysis, block, names))
    return found


def _of_block(analysis: Analysis, block: Block, names: Sequence[str]) -> Iterator[tuple[int, RaggedProduct]]:
    graph, seeds = analysis.graph, {seed.position for seed in block.seeds}
    named = dict(zip(analysis.axes, names, strict=True))
    sharded = _sharded(block, named)
    scattered = tuple(axis for axis, name in named.items() if name == SCATTERED[PartitionKind.COLUMNS])
    make = functools.partial(
        RaggedProduct, axes=tuple(analysis.axes.items()), sharded=tuple(sharded.items()), scattered=scattered
    )
    for position in analysis.interfaces.positions_of(block.number):
        equation = graph.equations[position]
        if equation.primitive.name != "ragged_dot_general":
            continue
        matched = analysis.matches.contractions.get(position)
        if graph.definitions.get(graph.first(equation.outvars[0])) in seeds:
            yield position, make(inputs=_forward_letters(equation), result="MN")
        elif matched is not None and matched.forward in seeds:
            forward = _forward_letters(graph.equations[matched.forward])
            shared = "".join(forward[matched.place][dim] for dim in matched.shared_dims)
            given = "".join("MN"[dim] for dim in matched.given_dims)
            result = "".join(forward[1 - matched.place][dim] for dim in matched.made_dims)
            yield position, make(inputs=(shared, given) if matched.side == 0 else (given, shared), result=result)


def _sharded(block: Block, names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Returns for each letter the axes that shard its dim; of a sum that ends sharded, the contracted one."""
    found: dict[str, tuple[str, ...]] = {}
    for axis, name in names.items():
        letter = _LETTERS[block.choice(name).kind]
        found[letter] = (*found.get(letter, ()), axis)
    return found


def _forward_letters(equation: Equation) -> tuple[str, str]:
    dims = ragged_dims(equation)
    assert dims is not None, "contractions of blocks have such dims"
    rows, weights = (
        dict(zip(of_input, letters, strict=True)) for of_input, letters in ((dims[0], "MK"), (dims[1], "GKN"))
    )
    return "".join(rows[dim] for dim in range(2)), "".join(weights[dim] for dim in range(3))


@functools.lru_cache(maxsize=256)
def _trace(
    product: RaggedProduct, types: Sequence[tuple[tuple[int, ...], Any]], primitive: Any, params: Sequence[Any]
) -> Any:
    """Returns the product as a traced function of the equation's inputs; equal layers share it."""
    axes, row_axes = dict(product.axes), dict(product.sharded)["M"]

    def multiply(left: jax.Array, right: jax.Array, sizes: jax.Array) -> jax.Array:
        left, right = (_gather(product, *one) for one in zip(product.inputs, (left, right), strict=True))
        num_rows = left.shape[product.inputs[0].index("M")]
        made = primitive.bind(left, right, _local_sizes(sizes, num_rows, row_axes), **dict(params))
        made = lax.psum(made, product.summed) if product.summed else made
        for axis in product.scattered if product.is_forward else ():
            made = lax.psum_scatter(made, axis, scatter_dimension=1, tiled=True)
        return made

    mapped = jax.shard_map(
        multiply,
        mesh=AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes)),
        in_specs=(*map(product.spec, product.inputs), PartitionSpec()),
        out_specs=product.spec(product.result),
        axis_names=set(axes),
        check_vma=False,
    )
    return jax.make_jaxpr(lambda *shards: [mapped(*shards)])(*(jax.ShapeDtypeStruct(*one) for one in types))


def _gather(product: RaggedProduct, dims: str, shard: jax.Array) -> jax.Array:
    """Gathers the columns of the gradient of a result that was scattered; other arrays stay as they are."""
    if set(dims) == set("MN"):
        for axis in reversed(product.scattered):
            shard = lax.all_gather(shard, axis, axis=dims.index("N"), tiled=True)
    return shard


def _local_sizes(sizes: jax.Array, num_rows: int, axes: tuple[str, ...]) -> jax.Array:
    """Returns the rows of each group on this device, given those of the whole array."""
    start = lax.axis_index(axes) * num_rows
    ends = jnp.clip(jnp.cumsum(sizes) - start, 0, num_rows)
    return jnp.diff(ends, prepend=0).astype(sizes.dtype)
