"""The plans that are worth a closer look after the search: its answer, and the best of each strategy of a layer.

The search is exact for the prices that it has, but those of segments alone leave out what neighbours share. So the
fastest plan for each strategy of a layer is found as well, and the best few are priced again, together with their
neighbours (`predict`). Layers are the kinds of segments with most strategies; an MoE model has two.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from jaxquard.errors import ShardingError
from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.baselines import Baseline
from jaxquard.intraop.price_segments import StepPrices
from jaxquard.intraop.search_chain import search_chain
from jaxquard.intraop.search_frontier import FrontierPoint
from jaxquard.intraop.search_segments import PricedSegment

# Three blocks of three choices count beside four with experts, which have 144 together; an embedding alone does not.
_ABOUT_AS_MANY = 6


def choose_finalists(
    analysis: Analysis,
    prices: StepPrices,
    chain: Sequence[PricedSegment],
    best: FrontierPoint,
    *,
    memory_limit_bytes: int | None,
    count: int,
) -> list[Baseline]:
    """At most `count` plans, the search's own answer first."""
    of_kinds = []
    for kind in _layers(prices):
        points = []
        places = [place for place, segment in enumerate(analysis.segments) if segment.kind == kind]
        times = chain[places[0]].times_s
        for strategy in sorted(range(len(times)), key=times.__getitem__)[: 3 * count]:
            try:
                forced = _force(chain, places, strategy)
                points.append(search_chain(forced, memory_limit_bytes=memory_limit_bytes, max_points=1).best)
            except ShardingError:
                continue
        of_kinds.append(sorted(points, key=lambda point: point.time_s))
    # The best of each kind in turns, so that none takes all places.
    ranked = itertools.chain(*itertools.zip_longest(*of_kinds))
    points = [best, *(point for point in ranked if point is not None)]
    unique = list({point.choices: point for point in points}.values())[:count]
    return [
        Baseline(name=f"finalist {number}", assignment=assignment_of(analysis, prices, point))
        for number, point in enumerate(unique)
    ]


def _layers(prices: StepPrices) -> list[int]:
    """The kinds of segments that have about as many strategies as any has."""
    counts = {kind: len(found.strategies) for kind, found in prices.kinds.items()}
    return [kind for kind, count in counts.items() if _ABOUT_AS_MANY * count >= max(counts.values())]


def assignment_of(analysis: Analysis, prices: StepPrices, point: FrontierPoint) -> dict[int, tuple[str, ...]]:
    """The choice of every block in an answer of the search."""
    found: dict[int, tuple[str, ...]] = {}
    for segment, choice in zip(analysis.segments, point.choices, strict=True):
        found.update(zip(segment.blocks, prices.kinds[segment.kind].strategies[choice], strict=True))
    return found


def _force(chain: Sequence[PricedSegment], places: Sequence[int], strategy: int) -> list[PricedSegment]:
    """The chain in which some segments have one strategy."""
    made: dict[int, PricedSegment] = {}
    forced = list(chain)
    for place in places:
        segment = chain[place]
        if id(segment) not in made:
            times = tuple(time if other == strategy else float("inf") for other, time in enumerate(segment.times_s))
            made[id(segment)] = replace(segment, times_s=times)
        forced[place] = made[id(segment)]
    return forced
