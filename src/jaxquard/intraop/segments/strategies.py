"""Strategies: the choices of a block on all mesh axes, and of all blocks of a segment (CFP, sections 3.3 and 5.2)."""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence

from jaxquard.errors import ShardingError
from jaxquard.intraop.blocks.block import Block
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.parameter_paths import equation_place
from jaxquard.intraop.blocks.shard_sequence import SEQUENCE
from jaxquard.intraop.blocks.two_dimensional import COLUMNS_2D, ROWS_2D
from jaxquard.intraop.segments.find_segments import Segment


def block_choices(
    block: Block, axes: Mapping[str, int], *, batch_axis: str | None, has_product: bool = False
) -> list[tuple[str, ...]]:
    """Returns the choices of a block on all axes together.

    Args:
        batch_axis: this axis always shards rows, where the block has any that it divides.
        has_product: adds a 2D product over the two axes.

    Of three axes the last two are for 2D products; any other choice is for both as if they were one.
    """
    per_axis = []
    for axis, size in axes.items():
        fitting = [choice.name for choice in block.choices if choice.num_chunks % size == 0]
        if axis == batch_axis and "rows" in fitting:
            fitting = ["rows"]
        per_axis.append(fitting or [block.choices[0].name])
    sizes = tuple(axes.values())
    found = [names for names in itertools.product(*per_axis) if _fits(block, names, sizes)]
    if len(axes) > 2:
        found = [names for names in found if names[-1] == names[-2]] or found
    return [*found, product_names(axes, batch_axis=batch_axis)] if has_product else found


def product_names(axes: Mapping[str, int], *, batch_axis: str | None) -> tuple[str, ...]:
    """Returns the choices of a 2D product on two axes: its rows are sharded over the batch axis, or over the first.

    On three axes, the first shards rows, and the product is over the others.
    """
    if len(axes) > 2:
        return "rows", ROWS_2D, COLUMNS_2D
    rows = batch_axis or next(iter(axes))
    return tuple(ROWS_2D if axis == rows else COLUMNS_2D for axis in axes)


def _fits(block: Block, names: tuple[str, ...], sizes: tuple[int, ...]) -> bool:
    """Returns true if axes that shard the same dim divide it together."""
    for name in set(names):
        parts = math.prod(size for other, size in zip(names, sizes, strict=True) if other == name)
        if block.choice(name).num_chunks % parts:
            return False
    return True


# For each block of a segment, the name of its choice on every axis, the outer one first.
Strategy = tuple[tuple[str, ...], ...]


def segment_strategies(
    segment: Segment,
    *,
    graph: StepGraph,
    blocks: Sequence[Block],
    axes: Mapping[str, int],
    batch_axis: str | None = None,
    products: Collection[int] = (),
) -> list[Strategy]:
    """Returns all strategies of a segment.

    Args:
        graph: the step, for the names in errors.
        batch_axis: as for `block_choices`.
        products: the numbers of the blocks that have a 2D product.

    Raises:
        ShardingError: if a block cannot be sharded over all axes.
    """
    per_block = []
    for number in segment.blocks:
        choices = block_choices(blocks[number], axes, batch_axis=batch_axis, has_product=number in products)
        if not choices:
            raise ShardingError(_no_dim_divides(graph, blocks[number], axes))
        per_block.append(choices)
    of_segment = [blocks[number] for number in segment.blocks]
    return [*itertools.product(*per_block), *_along_sequence(of_segment, axes, batch_axis=batch_axis)]


def _along_sequence(blocks: Sequence[Block], axes: Mapping[str, int], *, batch_axis: str | None) -> list[Strategy]:
    """Returns the strategies that shard the sequence over one axis in all blocks, and rows over the others."""
    found = []
    for axis in axes:
        names = tuple(SEQUENCE if other == axis else "rows" for other in axes)
        if axis != batch_axis and all(has_choices(block, names, axes) for block in blocks):
            found.append((names,) * len(blocks))
    return found


def has_choices(block: Block, names: tuple[str, ...], axes: Mapping[str, int]) -> bool:
    """Returns true if a block has a choice of each name that the axis divides."""
    chunks = {choice.name: choice.num_chunks for choice in (*block.choices, *block.more_choices)}
    return all(name in chunks and chunks[name] % size == 0 for name, size in zip(names, axes.values(), strict=True))


def _no_dim_divides(graph: StepGraph, block: Block, axes: Mapping[str, int]) -> str:
    mesh = " x ".join(map(str, axes.values()))
    where = equation_place(graph, block.seeds[0].equation)
    sizes = ", ".join(f"{choice.name} into {choice.num_chunks}" for choice in block.choices)
    return (
        f"the block at {where} has no dims that a mesh of {mesh} divides; it can be sharded at most "
        f"along its {sizes}. Use a mesh whose axes divide these, or pad the dims."
    )
