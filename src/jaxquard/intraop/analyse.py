"""What is known of a step before anything is priced: its blocks, its segments, and who owns which equation."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxquard.errors import ShardingError
from jaxquard.intraop.block import Block
from jaxquard.intraop.find_blocks import find_blocks
from jaxquard.intraop.graph import StepGraph
from jaxquard.intraop.match_backward import Matches, match_backward
from jaxquard.intraop.own_equations import own_equations
from jaxquard.intraop.segments import Segment, find_segments
from jaxquard.intraop.traced_step import TracedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """A step taken apart.

    Attributes:
        axes: the mesh axes and their sizes, the outer one first.
        owners: for each equation, the number of its block.
    """

    graph: StepGraph = field(repr=False)
    axes: Mapping[str, int]
    blocks: tuple[Block, ...]
    segments: tuple[Segment, ...]
    matches: Matches = field(repr=False)
    owners: tuple[int, ...] = field(repr=False)

    def segment_of_block(self) -> dict[int, int]:
        """For each block, its segment."""
        return {block: segment.number for segment in self.segments for block in segment.blocks}


def analyse_step(step: TracedStep, *, axes: Mapping[str, int]) -> Analysis:
    """Finds the blocks and segments of a step.

    Raises:
        ShardingError: if there is no contraction, or one has no dim that the largest axis divides.
    """
    graph = StepGraph(step=step)
    blocks = find_blocks(graph, num_parts=max(axes.values()))
    if not blocks:
        raise ShardingError(_nothing_to_cut(graph))
    matches = match_backward(graph)
    return Analysis(
        graph=graph,
        axes=dict(axes),
        blocks=blocks,
        segments=tuple(find_segments(graph, blocks)),
        matches=matches,
        owners=tuple(own_equations(graph, blocks, matches)),
    )


def _nothing_to_cut(graph: StepGraph) -> str:
    names = sorted({equation.primitive.name for equation in graph.equations})
    found = f"only {', '.join(names)}" if names else "nothing"
    return (
        "a step is cut along its matrix products, convolutions and look-ups in tables, but this one has none outside "
        f"of loops: it computes {found}. Pass the whole training step, with the layers outside of the loop."
    )
