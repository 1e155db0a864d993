"""The fastest plans of a chain in which some segments are held to one strategy; many of them, of one chain.

Without a limit one walk along the chain is enough (`relax` with no multiplier). So is it with a limit, if the fastest
plan of all keeps it; otherwise the exact search follows.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from jaxquard.errors import ShardingError
from jaxquard.intraop.search.chain import search_chain
from jaxquard.intraop.search.frontier import FrontierPoint
from jaxquard.intraop.search.priced_segment import PricedSegment, TrimmedSegment, trim_chain, trim_segment
from jaxquard.intraop.search.relaxation import relax


class ForcedChain:
    """A chain whose segments are trimmed once, for many searches."""

    def __init__(self, chain: Sequence[PricedSegment]) -> None:
        self._chain, self._segments = tuple(chain), trim_chain(chain)

    def fastest(self, places: Sequence[int], strategy: int, *, memory_limit_bytes: int | None) -> FrontierPoint | None:
        """Returns the fastest plan with one strategy for the segments at some places; None if none fits."""
        made: dict[tuple[int, int], TrimmedSegment] = {}
        segments = list(self._segments)
        for place in places:
            num_exits = self._segments[place - 1].num_exits if place else 1
            key = id(self._chain[place]), num_exits
            if key not in made:
                made[key] = trim_segment(_hold(self._chain[place], strategy), num_exits)
            segments[place] = made[key]
        if not all(len(segment.strategies) for segment in segments):
            return None
        relaxed = relax(segments, 0.0)
        if not math.isfinite(relaxed.minimum_s):
            return None
        if memory_limit_bytes is None or relaxed.point.size_bytes <= memory_limit_bytes:
            return relaxed.point
        return self._search(places, strategy, memory_limit_bytes)

    def _search(self, places: Sequence[int], strategy: int, memory_limit_bytes: int) -> FrontierPoint | None:
        held: dict[int, PricedSegment] = {}
        chain = list(self._chain)
        for place in places:
            chain[place] = held.setdefault(id(chain[place]), _hold(chain[place], strategy))
        try:
            return search_chain(chain, memory_limit_bytes=memory_limit_bytes, max_points=1).best
        except ShardingError:
            return None


def _hold(segment: PricedSegment, strategy: int) -> PricedSegment:
    """Returns a segment with one strategy left."""
    times_s = tuple(time_s if other == strategy else math.inf for other, time_s in enumerate(segment.times_s))
    return replace(segment, times_s=times_s)
