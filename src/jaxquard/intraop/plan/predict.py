"""The price of a whole plan, out of the prices of its parts.

The sum of equation (8) takes every segment by itself. Neighbours that run in one program cost less: sums of gradients
are merged, communication hides behind the neighbour's work, and there is one call. A step of few segments is therefore
priced whole. In a deeper one neighbours are priced in pairs, and a chain of segments costs the sum of its pairs less
the segments that two pairs share:

    a b c d    =    (a b) + (b c) + (c d) - (b) - (c)

So is its memory: the sum of equation (9) counts twice what crosses a border, and what segments hold only for a moment
as if they held it at the same time (13 to 27 % too much for a GPT of two layers).

A pair is priced once for the kinds and strategies of its two segments, so the number of programs does not grow with
depth. Only a few plans are worth it: those that the sum likes best, and the baselines.
"""

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxquard.intraop.plan.segment_prices import StepPrices, reshard_times_s
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.segments.strategies import Strategy
from jaxquard.intraop.shardings.baselines import Baseline
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.shardings.programs import name_segments, write_segments
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.pricing import Failure, OnProgress, Price, Pricer, ShardedProgram

# Up to so many segments, a whole step is no larger than all its pairs.
MOST_PRICED_WHOLE = 6
# One segment or several neighbours: the kind and the strategy of each, how state is kept, and whether this is what the
# plan runs, which is another program than a segment even where there is only one.
Key = tuple[tuple[tuple[int, Strategy], ...], Storage, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a plan costs, by the prices of its parts; infinite if one of them has no price.

    Attributes:
        time_s: whole, or with neighbours in pairs.
        sum_s: by equation (8), segment by segment; infinite if not all segments have prices.
        size_bytes: on each device, in the same way as the time.
        sum_bytes: by equation (9); 0 in that case.
        segments: of every segment, what it takes alone, what resharding before it takes, and its memory; none in that
            case.
    """

    name: str
    time_s: float
    sum_s: float
    size_bytes: int
    sum_bytes: int = 0
    segments: tuple[tuple[float, float, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """Some segments under a plan; `is_whole` if it is what the plan runs."""

    segments: tuple[Segment, ...]
    plan: Baseline
    is_whole: bool = False

    @property
    def key(self) -> Key:
        parts = tuple(
            (segment.kind, tuple(tuple(self.plan.assignment[block]) for block in segment.blocks))
            for segment in self.segments
        )
        return parts, self.plan.storage, self.is_whole

    def write(self, analysis: Analysis) -> ShardedProgram:
        if self.is_whole:
            return write_plan(analysis, self.plan)
        return write_segments(analysis, self.segments, self.plan.assignment, storage=self.plan.storage)


def predict_all(
    analysis: Analysis,
    prices: StepPrices,
    plans: Sequence[Baseline],
    *,
    pricer: Pricer,
    on_progress: OnProgress | None = None,
) -> list[Prediction]:
    """Predicts plans; what the search did not price is priced now.

    Segments of a step that is priced whole are not: those that the search does not look at, as of a baseline that keeps
    its state in parts, are of use for the plan that is chosen alone (`with_segments`).
    """
    parts = [
        _Part(segments=segments, plan=plan, is_whole=_is_whole(analysis))
        for plan in plans
        for segments in _parts(analysis)
    ]
    found = _price(analysis, prices, parts, pricer, on_progress)
    return [_predict(analysis, prices, plan, found) for plan in plans]


def compare_all(
    analysis: Analysis, plans: Sequence[Baseline], *, pricer: Pricer, on_progress: OnProgress | None = None
) -> list[float]:
    """Seconds of plans whose parts all run side by side; infinite if one of them fails.

    In a sum of pairs less a sum of segments, what was measured at different times does not go together: if the machine
    has half of its pace in between, a chain of layers seems to take three times as long.
    """
    parts: dict[Key, _Part] = {}
    for plan, segments in itertools.product(plans, list(_parts(analysis))):
        part = _Part(segments=segments, plan=plan, is_whole=_is_whole(analysis))
        parts.setdefault(part.key, part)
    programs = [part.write(analysis) for part in parts.values()]
    prices = pricer.compare(programs, groups=list(map(_group, parts)), on_progress=on_progress)
    found = dict(zip(parts, prices, strict=True))
    return [_time_s(analysis, plan, found) for plan in plans]


def _time_s(analysis: Analysis, plan: Baseline, found: Mapping[Key, Price | Failure]) -> float:
    known = _parts_of(analysis, plan, found)
    return float("inf") if known is None else _together(analysis, _each(known, lambda price: price.time_s))


def with_segments(
    analysis: Analysis, prices: StepPrices, plan: Baseline, prediction: Prediction, *, pricer: Pricer
) -> Prediction:
    """The prediction with the prices of all segments; infinite for those that have none."""
    if prediction.segments:
        return prediction
    parts = [_Part(segments=(segment,), plan=plan) for segment in analysis.segments]
    found = _price(analysis, prices, parts, pricer, None)
    return _with_sums(analysis, prices, plan, prediction, found)


def _price(
    analysis: Analysis,
    prices: StepPrices,
    parts: Sequence[_Part],
    pricer: Pricer,
    on_progress: OnProgress | None,
) -> dict[Key, Price | Failure]:
    """The prices of parts of plans, beside those of the search."""
    found = _known(prices)
    wanted: dict[Key, ShardedProgram] = {}
    for part in parts:
        if part.key not in found and part.key not in wanted:
            wanted[part.key] = part.write(analysis)
    new = pricer.price_all(list(wanted.values()), groups=list(map(_group, wanted)), on_progress=on_progress)
    return found | dict(zip(wanted, new, strict=True))


def _group(key: Key) -> Hashable:
    """The same for parts that compete: other strategies of the same segments."""
    return tuple(kind for kind, _ in key[0])


def write_plan(analysis: Analysis, plan: Baseline) -> ShardedProgram:
    """What a plan runs, stacked leaves and all, with the names of all its segments."""
    name = name_segments(analysis.segments, plan.assignment, storage=plan.storage)
    return replace(write_whole_step(analysis, plan.assignment, storage=plan.storage), name=name)


def _known(prices: StepPrices) -> dict[Key, Price | Failure]:
    return {
        (((kind, strategy),), Storage.AS_USED, False): price
        for kind, found in prices.kinds.items()
        for strategy, price in zip(found.strategies, found.prices, strict=True)
    }


def _is_whole(analysis: Analysis) -> bool:
    """Whether plans are priced whole."""
    return len(analysis.segments) <= MOST_PRICED_WHOLE


def _parts(analysis: Analysis) -> Iterator[tuple[Segment, ...]]:
    """All segments together; or each, and all pairs of neighbours."""
    if _is_whole(analysis):
        yield analysis.segments
        return
    for segment in analysis.segments:
        yield (segment,)
    yield from itertools.pairwise(analysis.segments)


def _predict(
    analysis: Analysis, prices: StepPrices, plan: Baseline, found: Mapping[Key, Price | Failure]
) -> Prediction:
    known = _parts_of(analysis, plan, found)
    if known is None:
        return Prediction(name=plan.name, time_s=float("inf"), sum_s=float("inf"), size_bytes=0)
    prediction = Prediction(
        name=plan.name,
        time_s=_together(analysis, _each(known, lambda price: price.time_s)),
        sum_s=float("inf"),
        size_bytes=round(_together(analysis, _each(known, lambda price: price.peak_bytes))),
    )
    alone = (_Part(segments=(segment,), plan=plan) for segment in analysis.segments)
    is_known = all(isinstance(found.get(part.key), Price) for part in alone)
    return _with_sums(analysis, prices, plan, prediction, found) if is_known else prediction


def _parts_of(
    analysis: Analysis, plan: Baseline, found: Mapping[Key, Price | Failure]
) -> dict[tuple[Segment, ...], Price] | None:
    """The prices of a plan's parts; None if one failed."""
    is_whole = _is_whole(analysis)
    parts = {
        segments: found[_Part(segments=segments, plan=plan, is_whole=is_whole).key] for segments in _parts(analysis)
    }
    known = {segments: price for segments, price in parts.items() if isinstance(price, Price)}
    return known if len(known) == len(parts) else None


def _each(
    known: Mapping[tuple[Segment, ...], Price], value: Callable[[Price], float]
) -> dict[tuple[Segment, ...], float]:
    return {segments: value(price) for segments, price in known.items()}


def _with_sums(
    analysis: Analysis,
    prices: StepPrices,
    plan: Baseline,
    prediction: Prediction,
    found: Mapping[Key, Price | Failure],
) -> Prediction:
    """The prediction with what is known of its segments."""
    alone = [found[_Part(segments=(segment,), plan=plan).key] for segment in analysis.segments]
    times_s = [price.time_s if isinstance(price, Price) else float("inf") for price in alone]
    sizes = [price.peak_bytes if isinstance(price, Price) else 0 for price in alone]
    reshards_s = reshard_times_s(analysis, prices, plan.assignment)
    return replace(
        prediction,
        sum_s=sum(times_s) + sum(reshards_s),
        sum_bytes=sum(sizes),
        segments=tuple(zip(times_s, reshards_s, sizes, strict=True)),
    )


def _together(analysis: Analysis, known: Mapping[tuple[Segment, ...], float]) -> float:
    """Seconds or bytes of all segments, out of those of parts of the step."""
    if analysis.segments in known:
        return known[analysis.segments]
    # However noisy the measurements are, a pair takes no less than either of its segments.
    pairs = [max(known[pair], known[pair[0],], known[pair[1],]) for pair in itertools.pairwise(analysis.segments)]
    return sum(pairs) - sum(known[segment,] for segment in analysis.segments[1:-1])
