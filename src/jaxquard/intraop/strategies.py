"""The strategies of a segment: a choice for each of its blocks on each mesh axis (CFP, sections 3.3 and 5.2)."""

import itertools

from jaxquard.errors import ShardingError
from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.block import Block
from jaxquard.intraop.block_choices import block_choices
from jaxquard.intraop.segments import Segment
from jaxquard.intraop.source_lines import source_line

# For each block of a segment, the name of its choice on every axis, the outer one first.
Strategy = tuple[tuple[str, ...], ...]


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
