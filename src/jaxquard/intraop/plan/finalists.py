"""The plans that are worth a closer look after the search: its answer, and the best of each strategy of a layer.

The search is exact for the prices that it has, but those of segments alone leave out what neighbours share. So the
fastest plan for each strategy of a layer is found as well, and the best few are priced again, together with their
neighbours (`predict`). Layers are the kinds of segments with most strategies; an MoE model has two.

Prices the closest rivals once more, together: which of them is best, single prices are too rough to tell.

Plans that were priced at different times met with different disturbances; of many that are nearly as fast, the one that
seems fastest is often just the luckiest. Of a step that is too deep to be priced whole, the segments and pairs of
neighbours of all rivals run side by side. Baselines take part however slow they are, as they are shown beside
the plan: what is far behind is soon stopped.
"""

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.predict import MOST_PRICED_WHOLE, Prediction, compare_all
from jaxquard.intraop.plan.segment_prices import StepPrices
from jaxquard.intraop.search.chain import search_chain
from jaxquard.intraop.search.frontier import FrontierPoint
from jaxquard.intraop.search.priced_segment import PricedSegment
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.shardings.baselines import Baseline
from jaxquard.pricing import OnProgress, Pricer

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


# Plans that take at most so many times as long as the fastest, and so many different ones of them.
_CLOSE = 1.25
_MOST_RIVALS = 8
# Of deep steps fewer, as each has several programs; and others than the closest too, as the first prices are rougher.
_CLOSE_DEEP = 1.5
_MOST_DEEP_RIVALS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All predictions, those of rivals with new times.

    Attributes:
        rivals: the places of plans with new times. They alone can be compared: the others' are of another moment, at
            which the machine may have been faster. None if nothing was compared.
    """

    predictions: tuple[Prediction, ...]
    rivals: tuple[int, ...] = field(default=())


def compare_rivals(
    analysis: Analysis,
    plans: Sequence[Baseline],
    predictions: Sequence[Prediction],
    *,
    num_finalists: int,
    memory_limit_bytes: int | None,
    pricer: Pricer,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Prices the closest rivals again, and the baselines.

    Args:
        num_finalists: so many plans are of the search, and stand before the baselines.
    """
    limit = float("inf") if memory_limit_bytes is None else memory_limit_bytes
    running = [place for place, found in enumerate(predictions) if found.time_s != float("inf")]
    fitting = [place for place in running if predictions[place].size_bytes <= limit]
    best_s = min((predictions[place].time_s for place in fitting), default=0.0)
    is_deep = len(analysis.segments) > MOST_PRICED_WHOLE
    factor, most = (_CLOSE_DEEP, _MOST_DEEP_RIVALS) if is_deep else (_CLOSE, _MOST_RIVALS)
    close = [place for place in fitting if predictions[place].time_s <= factor * best_s]
    nearest = _equal(analysis, plans, sorted(close, key=lambda place: predictions[place].time_s))[:most]
    others = [place for place in running if place >= num_finalists] if nearest else []
    rivals = _equal(analysis, plans, [*itertools.chain(*nearest), *others])
    if len(rivals) < 2:
        return Comparison(predictions=tuple(predictions))
    firsts = [plans[places[0]] for places in rivals]
    compared = list(predictions)
    times_s = compare_all(analysis, firsts, pricer=pricer, on_progress=on_progress)
    for places, time_s in zip(rivals, times_s, strict=True):
        for place in places:
            compared[place] = replace(compared[place], time_s=time_s)
    return Comparison(predictions=tuple(compared), rivals=tuple(sorted(itertools.chain(*rivals))))


def _equal(analysis: Analysis, plans: Sequence[Baseline], places: Sequence[int]) -> list[list[int]]:
    """The places, in their order, those together whose plans are the same."""
    equal: dict[Hashable, list[int]] = {}
    for place in dict.fromkeys(places):
        equal.setdefault(_key(analysis, plans[place]), []).append(place)
    return list(equal.values())


def _key(analysis: Analysis, plan: Baseline) -> Hashable:
    """The same for plans that are the same by other names."""
    return tuple(tuple(plan.assignment[block.number]) for block in analysis.blocks), plan.storage
