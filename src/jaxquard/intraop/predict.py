"""The price of a whole plan, out of the prices of its parts.

The sum of equation (8) takes every segment by itself. Neighbours that run in one program cost less: sums of gradients
are merged, communication hides behind the neighbour's work, and there is one call. So neighbours are priced in pairs,
and a chain of segments costs the sum of its pairs less the segments that two pairs share:

    a b c d    =    (a b) + (b c) + (c d) - (b) - (c)

A pair is priced once for the kinds and strategies of its two segments, so the number of programs does not grow with
depth. Only a few plans are worth it: those that the sum likes best, and the baselines.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.baselines import Baseline
from jaxquard.intraop.layouts import Storage, lay_out
from jaxquard.intraop.price_segments import StepPrices, reshard_time_s
from jaxquard.intraop.segments import Segment
from jaxquard.intraop.strategies import Strategy
from jaxquard.intraop.write_program import entry_spec, exit_spec, write_segments
from jaxquard.pricing import Failure, OnProgress, Price, Pricer, ShardedProgram

# One segment or two neighbours: the kind and the strategy of each, and how state is kept.
Key = tuple[tuple[tuple[int, Strategy], ...], Storage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a plan costs, by the prices of its parts; infinite if one of them has no price.

    Attributes:
        time_s: with neighbours in pairs.
        sum_s: by equation (8), segment by segment.
        size_bytes: by equation (9).
    """

    name: str
    time_s: float
    sum_s: float
    size_bytes: int


def predict_all(
    analysis: Analysis,
    prices: StepPrices,
    plans: Sequence[Baseline],
    *,
    pricer: Pricer,
    on_progress: OnProgress | None = None,
) -> list[Prediction]:
    """Predicts plans; what the search did not price, pairs above all, is priced now."""
    found = _known(prices)
    wanted: dict[Key, ShardedProgram] = {}
    for plan in plans:
        for segments in _parts(analysis):
            key = _key(segments, plan)
            if key not in found and key not in wanted:
                wanted[key] = write_segments(analysis, segments, plan.assignment, storage=plan.storage)
    groups = [tuple(kind for kind, _ in parts) for parts, _ in wanted]
    new = pricer.price_all(list(wanted.values()), groups=groups, on_progress=on_progress)
    found |= dict(zip(wanted, new, strict=True))
    return [_predict(analysis, prices, plan, found) for plan in plans]


def _known(prices: StepPrices) -> dict[Key, Price | Failure]:
    return {
        (((kind, strategy),), Storage.AS_USED): price
        for kind, found in prices.kinds.items()
        for strategy, price in zip(found.strategies, found.prices, strict=True)
    }


def _parts(analysis: Analysis) -> Iterator[tuple[Segment, ...]]:
    """All segments, and all pairs of neighbours."""
    for segment in analysis.segments:
        yield (segment,)
    yield from zip(analysis.segments, analysis.segments[1:], strict=False)


def _key(segments: Sequence[Segment], plan: Baseline) -> Key:
    parts = [(segment.kind, tuple(tuple(plan.assignment[block]) for block in segment.blocks)) for segment in segments]
    return tuple(parts), plan.storage


def _predict(
    analysis: Analysis, prices: StepPrices, plan: Baseline, found: Mapping[Key, Price | Failure]
) -> Prediction:
    parts = {segments: found[_key(segments, plan)] for segments in _parts(analysis)}
    if any(isinstance(price, Failure) for price in parts.values()):
        return Prediction(name=plan.name, time_s=float("inf"), sum_s=float("inf"), size_bytes=0)
    times = {segments: price.time_s for segments, price in parts.items() if isinstance(price, Price)}
    alone = [times[segment,] for segment in analysis.segments]
    # However noisy the measurements are, a pair takes no less than either of its segments.
    pairs = [
        max(times[pair], times[pair[0],], times[pair[1],])
        for pair in zip(analysis.segments, analysis.segments[1:], strict=False)
    ]
    return Prediction(
        name=plan.name,
        time_s=sum(pairs) - sum(alone[1:-1]) if pairs else alone[0],
        sum_s=sum(alone) + _reshards_s(analysis, prices, plan),
        size_bytes=sum(price.peak_bytes for key, price in parts.items() if len(key) == 1 and isinstance(price, Price)),
    )


def _reshards_s(analysis: Analysis, prices: StepPrices, plan: Baseline) -> float:
    """Of what crosses the borders, segment by segment."""
    total_s = 0.0
    left, before = None, None
    for segment in analysis.segments:
        first = prices.kinds[segment.kind]
        names = [plan.assignment[block] for block in segment.blocks]
        assignment = dict(zip(first.segment.blocks, names, strict=True))
        layouts = lay_out(analysis, assignment, crossing=first.crossing, segment=first.segment)
        if before is not None and left is not None:
            total_s += reshard_time_s(prices, before.kind, segment.kind, left, entry_spec(layouts, first.crossing))
        left, before = exit_spec(layouts, first.crossing), segment
    return total_s
