"""The analysis of a step, before anything is priced: its blocks, its segments, and the owner of each equation.

For several meshes a step is read once. Its blocks depend on the mesh only as far as sizes divide, and its segments as
far as blocks have as many strategies: where these are alike, so are the blocks and segments, and all that follows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jaxquard.errors import ShardingError
from jaxquard.intraop.blocks.assign_owners import assign_owners
from jaxquard.intraop.blocks.block import Block
from jaxquard.intraop.blocks.find_blocks import find_blocks
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.match_backward import Matches, match_backward
from jaxquard.intraop.segments.boundary_values import BoundaryValue, find_boundary_values
from jaxquard.intraop.segments.find_segments import BlockRuns, Segment
from jaxquard.intraop.segments.interfaces import SegmentInterfaces
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
        interfaces: the inputs and outputs of segments; the same object for meshes that have the same segments.
        products: for each block that may be a 2D product, the plan of each of its first contractions.
    """

    graph: StepGraph = field(repr=False)
    axes: Mapping[str, int]
    blocks: tuple[Block, ...]
    segments: tuple[Segment, ...]
    matches: Matches = field(repr=False)
    owners: tuple[int, ...] = field(repr=False)
    boundary_values: Mapping[Var, BoundaryValue] = field(repr=False)
    interfaces: SegmentInterfaces = field(repr=False, compare=False)
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
    shards_rows_alone: bool = False,
) -> Analysis:
    """Finds the blocks and segments of a step.

    Args:
        every_combination: gives blocks all their choices on every axis; else the outer of two axes shards rows where it
            can.
        lengths: the number of blocks in each segment, as in a plan; None to find the segments.
        plan_products: returns the blocks that may be 2D products; none by default.
        shards_rows_alone: a step without contractions is one block, which can be sharded by rows.

    Raises:
        ShardingError: if there is no contraction, one has no dim that the largest axis divides, or there are not as
            many blocks as the segments have.
    """
    return StepAnalyser(step, shards_rows_alone=shards_rows_alone).analyse(
        axes=axes, every_combination=every_combination, lengths=lengths, plan_products=plan_products
    )


class StepAnalyser:
    """Analyses one step for many meshes."""

    def __init__(self, step: TracedStep, *, shards_rows_alone: bool = False) -> None:
        self.graph = StepGraph(step=step, shards_rows_alone=shards_rows_alone)
        self._grouped: list[_GroupedStep] = []

    @cached_property
    def matches(self) -> Matches:
        """The gradients that backward contractions compute."""
        return match_backward(self.graph)

    def analyse(
        self,
        *,
        axes: Mapping[str, int],
        every_combination: bool = False,
        lengths: Sequence[int] | None = None,
        plan_products: Callable[[Sequence[Block]], ProductPlans] = lambda blocks: {},
    ) -> Analysis:
        """Finds the blocks and segments for a mesh, as `analyse_step` does."""
        grouped = self._group(max(axes.values()), min(axes.values()))
        blocks = grouped.blocks
        products = plan_products(blocks)
        if lengths is None:
            segments = grouped.runs.find(_counts(blocks, axes, every_combination, products))
        elif sum(lengths) == len(blocks):
            segments = grouped.runs.of_lengths(lengths)
        else:
            raise ShardingError(
                f"the plan has {sum(lengths)} blocks, and this version of jaxquard finds {len(blocks)}. Search again."
            )
        boundary_values, interfaces = grouped.connect(segments)
        return Analysis(
            graph=self.graph,
            axes=dict(axes),
            blocks=blocks,
            segments=segments,
            matches=self.matches,
            owners=grouped.owners,
            boundary_values=boundary_values,
            interfaces=interfaces,
            products=products,
        )

    def _group(self, num_shards: int, fewest_shards: int) -> "_GroupedStep":
        known = next((found for found in self._grouped if found.is_same_for(num_shards, fewest_shards)), None)
        if known is None:
            known = _GroupedStep(self.graph, self.matches, num_shards, fewest_shards)
            self._grouped.append(known)
        return known


class _GroupedStep:
    """The blocks of a step on axes of some size, and what follows from them."""

    def __init__(self, graph: StepGraph, matches: Matches, num_shards: int, fewest_shards: int) -> None:
        self._graph, self._matches = graph, matches
        self._num_shards, self._fewest_shards = num_shards, fewest_shards
        self.blocks = find_blocks(graph, num_shards=num_shards, fewest_shards=fewest_shards)
        if not self.blocks:
            raise ShardingError(_nothing_to_shard(graph))
        # Growing blocks asks nothing else of the mesh than which of these it divides.
        sizes = {one.size for found in graph.contractions.values() for group in found.groups for one in group}
        self._sizes = frozenset(sizes | graph.known_chunks())
        self.owners = tuple(assign_owners(graph, self.blocks, matches))
        self.runs = BlockRuns(graph, self.blocks, matches=matches, owners=self.owners)
        self._connected: dict[tuple[Segment, ...], tuple[dict[Var, BoundaryValue], SegmentInterfaces]] = {}

    def is_same_for(self, num_shards: int, fewest_shards: int) -> bool:
        """Returns true if blocks are the same on axes of other sizes: what these divide, or do not, is as before."""
        pairs = (num_shards, self._num_shards), (fewest_shards, self._fewest_shards)
        return all((size % one == 0) == (size % other == 0) for one, other in pairs for size in self._sizes)

    def connect(self, segments: tuple[Segment, ...]) -> tuple[dict[Var, BoundaryValue], SegmentInterfaces]:
        """Returns the values that cross segment boundaries, and the segments' interfaces."""
        if segments not in self._connected:
            found = find_boundary_values(self._graph, self.owners, segments, self._matches)
            self._connected[segments] = found, SegmentInterfaces(self._graph, self.owners, found, self._matches)
        return self._connected[segments]


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
