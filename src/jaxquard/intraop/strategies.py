"""The strategies of a segment: a choice for each of its blocks on each mesh axis (CFP, sections 3.3 and 5.2)."""

import itertools
import math
from collections.abc import Mapping

from jaxquard.errors import ShardingError
from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.block import Block
from jaxquard.intraop.segments import Segment
from jaxquard.intraop.source_lines import source_line

# For each block of a segment, the name of its choice on every axis, the outer one first.
Strategy = tuple[tuple[str, ...], ...]


def block_choices(block: Block, axes: Mapping[str, int], *, batch_axis: str | None) -> list[tuple[str, ...]]:
    """The choices of a block on all axes together.

    Args:
        batch_axis: this axis always cuts rows, where the block has any that it divides.
    """
    per_axis = []
    for axis, size in axes.items():
        fitting = [choice.name for choice in block.choices if choice.num_chunks % size == 0]
        if axis == batch_axis and "rows" in fitting:
            fitting = ["rows"]
        per_axis.append(fitting or [block.choices[0].name])
    sizes = tuple(axes.values())
    return [names for names in itertools.product(*per_axis) if _fits(block, names, sizes)]


def _fits(block: Block, names: tuple[str, ...], sizes: tuple[int, ...]) -> bool:
    """Whether axes that cut the same dim divide it together."""
    for name in set(names):
        parts = math.prod(size for other, size in zip(names, sizes, strict=True) if other == name)
        if block.choice(name).num_chunks % parts:
            return False
    return True


def segment_strategies(analysis: Analysis, segment: Segment, *, batch_axis: str | None = None) -> list[Strategy]:
    """All strategies of a segment.

    Raises:
        ShardingError: if a block cannot be cut over all axes.
    """
    per_block = []
    for number in segment.blocks:
        choices = block_choices(analysis.blocks[number], analysis.axes, batch_axis=batch_axis)
        if not choices:
            raise ShardingError(_divides_nothing(analysis, analysis.blocks[number]))
        per_block.append(choices)
    return list(itertools.product(*per_block))


def _divides_nothing(analysis: Analysis, block: Block) -> str:
    mesh = " x ".join(map(str, analysis.axes.values()))
    sizes = ", ".join(f"{choice.name} into {choice.num_chunks}" for choice in block.choices)
    return (
        f"the block at {source_line(block.seeds[0].equation)} has no dims that a mesh of {mesh} divides; it can be cut "
        f"at most along its {sizes}. Use a mesh whose axes divide these, or pad the dims."
    )
