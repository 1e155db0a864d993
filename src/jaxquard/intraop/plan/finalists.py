"""Finalists: the plans that are priced again after the search, and the comparison that chooses among them.

The search is exact for its prices, but prices of segments alone leave out what neighbours share. So the fastest plan
for each strategy of a layer is found as well, and the best few are priced again together with their neighbours
(`predict`). Layers are the kinds of segments with most strategies; an MoE model has two.

Prices that were measured at different times met different disturbances: of many plans that are nearly as fast, the one
that seems fastest is often just the luckiest. So the closest finalists are measured once more, side by side
(`remeasure_finalists`); of a step that is too deep to be priced whole, all their segments and pairs of neighbours.
Baselines take part however slow they are, as they are shown beside the plan: a program far behind is soon stopped.
"""

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from jaxquard.intraop.plan.predict import MOST_PRICED_WHOLE, Prediction, compare_all
from jaxquard.intraop.plan.segment_prices import StepPrices, assignment_of
from jaxquard.intraop.search.chain import fastest_with
from jaxquard.intraop.search.frontier import FrontierPoint
from jaxquard.intraop.search.priced_segment import PricedSegment
from jaxquard.intraop.shardings.baselines import CandidatePlan
from jaxquard.pricing import OnProgress, Pricer

# Three blocks of three choices count beside four with experts, which have 144 together; an embedding alone does not.
_ABOUT_AS_MANY = 6


def choose_finalists(
    prices: StepPrices,
    chain: Sequence[PricedSegment],
    best: FrontierPoint,
    *,
    memory_limit_bytes: int | None,
    count: int,
) -> list[CandidatePlan]:
    """Returns at most `count` plans, the search's own answer first."""
    of_kinds = []
    for kind in _layers(prices):
        places = [place for place, segment in enumerate(prices.analysis.segments) if segment.kind == kind]
        times = chain[places[0]].times_s
        points = [
            fastest_with(chain, places, strategy, memory_limit_bytes=memory_limit_bytes)
            for strategy in sorted(range(len(times)), key=times.__getitem__)[: 3 * count]
        ]
        of_kinds.append(sorted(filter(None, points), key=lambda point: point.time_s))
    # The best of each kind in turns, so that none takes all places.
    ranked = itertools.chain(*itertools.zip_longest(*of_kinds))
    points = [best, *(point for point in ranked if point is not None)]
    unique = list({point.choices: point for point in points}.values())[:count]
    return [
        CandidatePlan(name=f"finalist {number}", assignment=assignment_of(prices, point))
        for number, point in enumerate(unique)
    ]


def _layers(prices: StepPrices) -> list[int]:
    """Returns the kinds of segments with about as many strategies as any has."""
    counts = {kind: len(found.strategies) for kind, found in prices.kinds.items()}
    return [kind for kind, count in counts.items() if _ABOUT_AS_MANY * count >= max(counts.values())]


# Measured once more are plans that take at most so many times as long as the fastest, and so many different ones.
_CLOSE = 1.25
_MOST_REMEASURED = 8
# Of deep steps fewer, as each has several programs; and slower ones too, as the first prices are rougher.
_CLOSE_DEEP = 1.5
_MOST_DEEP_REMEASURED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Remeasured:
    """All predictions, some with new times.

    Attributes:
        remeasured: the places of plans with new times. Only these compare with each other: the other times are of
            another moment, at which the machine may have been faster. Empty if nothing was measured again.
    """

    predictions: tuple[Prediction, ...]
    remeasured: tuple[int, ...] = field(default=())


def remeasure_finalists(
    prices: StepPrices,
    plans: Sequence[CandidatePlan],
    predictions: Sequence[Prediction],
    *,
    num_finalists: int,
    memory_limit_bytes: int | None,
    pricer: Pricer,
    on_progress: OnProgress | None = None,
) -> Remeasured:
    """Prices the closest finalists and the baselines again, side by side.

    Args:
        num_finalists: the number of plans that are the search's; they stand before the baselines.
    """
    limit = float("inf") if memory_limit_bytes is None else memory_limit_bytes
    running = [place for place, found in enumerate(predictions) if found.time_s != float("inf")]
    fitting = [place for place in running if predictions[place].size_bytes <= limit]
    best_s = min((predictions[place].time_s for place in fitting), default=0.0)
    is_deep = len(prices.analysis.segments) > MOST_PRICED_WHOLE
    factor, most = (_CLOSE_DEEP, _MOST_DEEP_REMEASURED) if is_deep else (_CLOSE, _MOST_REMEASURED)
    close = [place for place in fitting if predictions[place].time_s <= factor * best_s]
    nearest = group_equal(plans, sorted(close, key=lambda place: predictions[place].time_s))[:most]
    others = [place for place in running if place >= num_finalists] if nearest else []
    chosen = group_equal(plans, [*itertools.chain(*nearest), *others])
    if len(chosen) < 2:
        return Remeasured(predictions=tuple(predictions))
    firsts = [plans[places[0]] for places in chosen]
    compared = list(predictions)
    times_s = compare_all(prices, firsts, pricer=pricer, on_progress=on_progress)
    for places, time_s in zip(chosen, times_s, strict=True):
        for place in places:
            compared[place] = replace(compared[place], time_s=time_s)
    return Remeasured(predictions=tuple(compared), remeasured=tuple(sorted(itertools.chain(*chosen))))


def group_equal(plans: Sequence[CandidatePlan], places: Sequence[int]) -> list[list[int]]:
    """Groups places whose plans are the same by other names, in their order."""
    equal: dict[Hashable, list[int]] = {}
    for place in dict.fromkeys(places):
        equal.setdefault(plans[place].key, []).append(place)
    return list(equal.values())
