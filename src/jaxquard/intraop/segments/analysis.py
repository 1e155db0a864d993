"""The analysis of a step, before anything is priced: its blocks, its segments, and the owner of each equation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxquard.errors import ShardingError
from jaxquard.intraop.blocks.assign_owners import assign_owners
from jaxquard.intraop.blocks.block import Block
from jaxquard.intraop.blocks.find_blocks import find_blocks
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.match_backward import Matches, match_backward
from jaxquard.intraop.segments.boundary_values import BoundaryValue, find_boundary_values
from jaxquard.intraop.segments.find_segments import Segment, find_segments, given_segments
from jaxquard.intraop.segments.strategies import block_choices
from jaxquard.intraop.segments.tune_products import ProductPlans
from jaxquard.intraop.step.traced_step import TracedStep
from jaxquard.ir.jaxpr_tools import Var
from jaxquard.ir.source import source_place


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The blocks and segments of a step.

    Attributes:
        axes: the mesh axes and their sizes, the outer one first.
        owners: for each equation, the number of its block.
        boundary_values: activations and gradients that cross segment boundaries.
        products: for each block that may be a 2D product, the plan of each of its first contractions.
    """

    graph: StepGraph = field(repr=False)
    axes: Mapping[str, int]
    blocks: tuple[Block, ...]
    segments: tuple[Segment, ...]
    matches: Matches = field(repr=False)
    owners: tuple[int, ...] = field(repr=False)
    boundary_values: Mapping[Var, BoundaryValue] = field(repr=False)
    products: ProductPlans = field(default_factory=dict, repr=False)

    @property
    def step(self) -> TracedStep:
        """The step itself."""
        return self.graph.step

    def segment_of_block(self) -> dict[int, int]:
        """Returns the segment of each block."""
        return {block: segment.number for segment in self.segments for block in segment.blocks}


def analyse_step(
    step: TracedStep,
    *,
    axes: Mapping[str, int],
    every_combination: bool = False,
    lengths: Sequence[int] | None = None,
    plan_products: Callable[[Sequence[Block]], ProductPlans] = lambda blocks: {},
) -> Analysis:
    """Finds the blocks and segments of a step.

    Args:
        every_combination: gives blocks all their choices on every axis; else the outer of two axes shards rows where it
            can.
        lengths: the number of blocks in each segment, as in a plan; None to find the segments.
        plan_products: returns the blocks that may be 2D products; none by default.

    Raises:
        ShardingError: if there is no contraction, one has no dim that the largest axis divides, or there are not as
            many blocks as the segments have.
    """
    graph = StepGraph(step=step)
    blocks = find_blocks(graph, num_shards=max(axes.values()), fewest_shards=min(axes.values()))
    if not blocks:
        raise ShardingError(_nothing_to_shard(graph))
    matches = match_backward(graph)
    owners = tuple(assign_owners(graph, blocks, matches))
    products = plan_products(blocks)
    if lengths is None:
        counts = _counts(blocks, axes, every_combination, products)
        segments = tuple(find_segments(graph, blocks, matches=matches, owners=owners, counts=counts))
    elif sum(lengths) == len(blocks):
        segments = tuple(given_segments(graph, blocks, lengths, matches=matches, owners=owners))
    else:
        raise ShardingError(
            f"the plan has {sum(lengths)} blocks, and this version of jaxquard finds {len(blocks)}. Search again."
        )
    return Analysis(
        graph=graph,
        axes=dict(axes),
        blocks=blocks,
        segments=segments,
        matches=matches,
        owners=owners,
        boundary_values=find_boundary_values(graph, owners, segments, matches),
        products=products,
    )


def check_choices(analysis: Analysis, assignment: Mapping[int, Sequence[str]]) -> None:
    """Checks that every block has the choice that an assignment names, on every axis.

    Raises:
        ShardingError: if a block lacks one.
    """
    for block in analysis.blocks:
        found = block.all_choices if block.number in analysis.products else (*block.choices, *block.more_choices)
        names = [choice.name for choice in found]
        chosen = assignment[block.number]
        unknown = next((name for name in chosen if name not in names), None)
        if unknown is not None or len(chosen) != len(analysis.axes):
            raise ShardingError(
                f"the plan shards block {block.number} by {' and '.join(chosen) or 'nothing'}, and this version of "
                f"jaxquard has {', '.join(names)} for it, one for each of {len(analysis.axes)} axes. Search again."
            )


def _counts(
    blocks: Sequence[Block], axes: Mapping[str, int], every_combination: bool, products: ProductPlans
) -> list[int]:
    """Returns the number of strategies of each block."""
    outer = None if every_combination or len(axes) == 1 else next(iter(axes))
    return [
        max(1, len(block_choices(block, axes, batch_axis=outer, has_product=block.number in products)))
        for block in blocks
    ]


def _nothing_to_shard(graph: StepGraph) -> str:
    beginning = "a step is sharded along its matrix products, convolutions and look-ups in tables, but"
    loop = next((equation for equation in graph.equations if equation.primitive.name in ("scan", "while")), None)
    if loop is not None:
        return (
            f"{beginning} this one has none outside of the loop at {source_place(loop)}. A `lax.scan` over stacked "
            "weights is opened; a loop over microbatches or over time hides the layers. Search with a step on one "
            "microbatch, or on the whole batch at once; write layers that share weights, or pick theirs by a counter, "
            "one after the other."
        )
    names = sorted({equation.primitive.name for equation in graph.equations})
    found = f"only {', '.join(names)}" if names else "nothing"
    return f"{beginning} this one has none: it computes {found}. Pass the whole training step."
