"""2D products of a block: both mesh axes shard each matrix of its first contractions (MeshSlice, section 2.2).

A contraction of data with a weight is a fully connected layer Y = X W. With `2d rows` on one axis and `2d columns` on
the other, the rows of every matrix are sharded over the first axis and its columns over the second:

    X[M,K]   M over 2d rows, K over 2d columns
    W[K,N]   K over 2d rows, N over 2d columns
    Y[M,N]   M over 2d rows, N over 2d columns

What follows Y in the block is laid out as under `rows` and `columns`; only what the contraction itself takes is sharded
further, and comes to where it is needed along the rings of the mesh (`shardings.write_products`).

The dims of an array are written as in an einsum, each a letter with a number: a product with two dims of rows is
`(M0, M1, K0), (K0, N0) -> (M0, M1, N0)`. Number 0 is the dim of its letter that is sharded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.intraop.blocks.block import Choice
from jaxquard.intraop.blocks.contraction import Contraction, PartitionKind
from jaxquard.intraop.blocks.match_backward import BackwardContraction

ROWS_2D = "2d rows"
COLUMNS_2D = "2d columns"

# For each dim of an array, its letter and number.
Dims = tuple[str, ...]

_LETTERS = {PartitionKind.ROWS: "M", PartitionKind.CONTRACTED: "K", PartitionKind.COLUMNS: "N"}


def product_choices(seeds: Sequence[Contraction], choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Returns the two choices of a 2D product, given those of a block; none unless all its seeds are such layers."""
    found = {choice.kind: choice for choice in choices}
    if not found.keys() >= _LETTERS.keys() or not all(map(_is_layer, seeds)):
        return ()
    if any(one.out_dim is None for one in found[PartitionKind.COLUMNS].partitions):
        return ()
    contracted = found[PartitionKind.CONTRACTED]
    weights = {(seed.position, 1 - seed.data) for seed in seeds}
    data = {(seed.position, seed.data) for seed in seeds}
    return (
        _with_contracted(found[PartitionKind.ROWS], contracted, of=weights, name=ROWS_2D),
        _with_contracted(found[PartitionKind.COLUMNS], contracted, of=data, name=COLUMNS_2D),
    )


def _is_layer(seed: Contraction) -> bool:
    """Returns true for a product of data with a weight of the same floating type, without batch dims."""
    types = {atom.aval.dtype for atom in seed.equation.invars}
    has_batch = any(group[0].kind is PartitionKind.BATCH for group in seed.groups)
    is_product = seed.equation.primitive.name == "dot_general" and seed.has_state and not has_batch
    return is_product and len(types) == 1 and types.pop().name in ("float32", "bfloat16", "float16")


def _with_contracted(choice: Choice, contracted: Choice, *, of: set[tuple[int, int]], name: str) -> Choice:
    """Returns a choice that shards some inputs of the seeds along their contracted dim instead."""
    needs = {key: contracted.needs[key] if key in of else dim for key, dim in choice.needs.items()}
    return Choice(
        name=name,
        partitions=choice.partitions,
        num_chunks=math.gcd(choice.num_chunks, contracted.num_chunks),
        dims=choice.dims,
        needs=needs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDims:
    """The dims of a layer Y = X W: of the forward contraction's inputs, in their order, and of its result.

    Example:
        X[8,16,64] W[64,128] with the first dim sharded: `inputs` are (M0, M1, K0) and (K0, N0), `result` (M0, M1, N0).
    """

    inputs: tuple[Dims, Dims]
    result: Dims

    def backward(self, product: BackwardContraction) -> tuple[tuple[Dims, Dims], Dims]:
        """Returns the dims of a backward contraction: of its inputs, and of its result."""
        shared = tuple(self.inputs[product.place][dim] for dim in product.shared_dims)
        given = tuple(self.result[dim] for dim in product.given_dims)
        made = tuple(self.inputs[1 - product.place][dim] for dim in product.made_dims)
        return ((shared, given) if product.side == 0 else (given, shared)), made


def layer_dims(seed: Contraction, choices: Sequence[Choice], *, number: int) -> LayerDims:
    """Returns the dims of a seed as a layer.

    Args:
        choices: of the block, `rows`, `columns` and `contracted` among them.
        number: of the seed in its block.
    """
    inputs: list[dict[int, str]] = [{}, {}]
    result: dict[int, str] = {}
    chosen = {choice.kind: choice.partitions[number] for choice in choices}
    for group in seed.groups:
        kind = group[0].kind
        ordered = sorted(group, key=lambda one: one != chosen[kind])
        for place, one in enumerate(ordered):
            name = f"{_LETTERS[kind]}{place}"
            for of_input, dim in zip(inputs, one.in_dims, strict=True):
                if dim is not None:
                    of_input[dim] = name
            if one.out_dim is not None:
                result[one.out_dim] = name
    first, second = (tuple(of_input[dim] for dim in range(len(of_input))) for of_input in inputs)
    return LayerDims(inputs=(first, second), result=tuple(result[dim] for dim in range(len(result))))
