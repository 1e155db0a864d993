"""The price of a plan by its segments alone: equations (7), (8) and (9) of CFP."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxquard.intraop.plan.segment_prices import StepPrices, make_chain
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.strategies import block_choices
from jaxquard.intraop.step.phases import EquationPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class SumPrice:
    """Time and memory by equations (8) and (9); infinite if a segment has no price."""

    time_s: float
    size_bytes: int


class SumPricer:
    """Adds up prices of segments; an assignment may have only choices that the search looked at."""

    def __init__(self, analysis: Analysis, prices: StepPrices) -> None:
        self._analysis = analysis
        self._chain = make_chain(prices)
        self._places = {
            kind: {strategy: place for place, strategy in enumerate(found.strategies)}
            for kind, found in prices.kinds.items()
        }

    def price(self, assignment: Mapping[int, Sequence[str]]) -> SumPrice | None:
        """Returns the price of a plan with state kept as it is used; None if the search lacks one of its strategies."""
        time_s, size_bytes, left = 0.0, 0, None
        for segment, priced in zip(self._analysis.segments, self._chain, strict=True):
            strategy = tuple(tuple(assignment[block]) for block in segment.blocks)
            place = self._places[segment.kind].get(strategy)
            if place is None:
                return None
            if priced.reshards_s is not None and left is not None:
                time_s += float(priced.reshards_s[left, priced.entries[place]])
            time_s += priced.times_s[place]
            size_bytes += priced.sizes_bytes[place]
            left = priced.exits[place]
        return SumPrice(time_s=time_s, size_bytes=size_bytes)


def equation_7(analysis: Analysis, *, batch_axis: str | None) -> int:
    """Returns the number of programs to price: strategies of each kind of segment, and of blocks across boundaries.

    Dependences of blocks in the same places of segments of the same kinds count once.
    """
    counts = [len(block_choices(block, analysis.axes, batch_axis=batch_axis)) for block in analysis.blocks]
    kinds = {segment.kind: segment for segment in analysis.segments}
    inside = sum(math.prod(counts[block] for block in segment.blocks) for segment in kinds.values())
    pairs = {(_place(analysis, maker), _place(analysis, user)): (maker, user) for maker, user in _dependences(analysis)}
    return inside + sum(counts[maker] * counts[user] for maker, user in pairs.values())


def _dependences(analysis: Analysis) -> Iterator[tuple[int, int]]:
    """For each activation that goes to a later segment, the block that makes it and the first there that takes it."""
    graph, segment_of = analysis.graph, analysis.segment_of_block()
    for var in analysis.boundary_values:
        position = graph.definitions[var]
        if graph.phases[position] is not EquationPhase.FORWARD:
            continue
        maker = analysis.owners[position]
        takers: dict[int, int] = {}
        for user in graph.users.get(var, ()):
            block = analysis.owners[user]
            segment = segment_of[block]
            if graph.phases[user] is EquationPhase.FORWARD and segment > segment_of[maker]:
                takers[segment] = min(block, takers.get(segment, block))
        for taker in takers.values():
            yield maker, taker


def _place(analysis: Analysis, block: int) -> tuple[int, int]:
    """The kind of a block's segment, and its place there."""
    segment = analysis.segments[analysis.segment_of_block()[block]]
    return segment.kind, segment.blocks.index(block)
