"""Predicts the price of a whole plan from the prices of its parts.

The sum of equation (8) takes every segment by itself. Neighbours that run in one program cost less: sums of gradients
are merged, communication overlaps with the neighbour's work, and there is one call. A step of few segments is therefore
priced whole. In a deeper one neighbours are priced in pairs, and a chain of segments costs the sum of its pairs less
the segments that two pairs share:

    a b c d    =    (a b) + (b c) + (c d) - (b) - (c)

Memory is predicted in the same way: the sum of equation (9) counts the values that cross a segment boundary twice, and
adds up buffers that segments hold at different times (13 to 27 % too much for a GPT of two layers).

A pair is priced once for the kinds and strategies of its two segments, so the number of programs does not grow with
depth. Only a few plans are priced so: those that are fastest by the sum, and the baselines.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxquard.intraop.plan.segment_prices import StepPrices, reshard_times_s
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.segments.strategies import Strategy
from jaxquard.intraop.shardings.baselines import CandidatePlan
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.shardings.programs import StepPrograms, name_segments
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.pricing import Failure, OnProgress, Price, Pricer, ShardedProgram

# Up to so many segments, a whole step is no larger than all its pairs.
MOST_PRICED_WHOLE = 6
# One segment, or several neighbours.
Segments = tuple[Segment, ...]
# The identity of a part's program: the kind and the strategy of each segment, the storage of state, and whether this is
# what the plan runs, which is another program than a segment even where there is only one.
Key = tuple[tuple[tuple[int, Strategy], ...], Storage, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The price of a plan, by the prices of its parts; infinite if one of them has none.

    Attributes:
        time_s: whole, or with neighbours in pairs.
        sum_s: by equation (8), segment by segment; infinite if not all segments have prices.
        size_bytes: on each device, in the same way as the time.
        segments: of every segment, its time alone, the time of resharding before it, and its memory; empty in that
            case.
        is_modelled: a part of it has a price in closed form.
        num_rounds: how often it was compared since: side by side with others, and as a training loop. Only times of
            one round compare with each other: the machine may have been faster at another moment.
        failures: of programs that got no price.
    """

    name: str
    time_s: float
    sum_s: float
    size_bytes: int
    segments: tuple[tuple[float, float, int], ...] = ()
    is_modelled: bool = False
    num_rounds: int = 0
    failures: tuple[Failure, ...] = ()

    def fits(self, memory_limit_bytes: int | None) -> bool:
        """Returns true if the plan runs, in so much memory."""
        return math.isfinite(self.time_s) and (memory_limit_bytes is None or self.size_bytes <= memory_limit_bytes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """Some segments under a plan; `is_whole` if this is what the plan runs."""

    segments: Segments
    plan: CandidatePlan
    is_whole: bool = False

    @property
    def key(self) -> Key:
        parts = tuple(
            (segment.kind, tuple(tuple(self.plan.assignment[block]) for block in segment.blocks))
            for segment in self.segments
        )
        return parts, self.plan.storage, self.is_whole

    def write(self, programs: StepPrograms) -> ShardedProgram:
        if self.is_whole:
            return write_plan(programs, self.plan)
        return programs.write_segments(self.segments, self.plan.assignment, storage=self.plan.storage)


def predict_all(
    prices: StepPrices, plans: Sequence[CandidatePlan], *, pricer: Pricer, on_progress: OnProgress | None = None
) -> list[Prediction]:
    """Predicts plans; parts that the search did not price are priced now.

    Where plans are priced whole, their segments are not: those that the search does not look at, such as segments with
    ZeRO's storage, are needed for the chosen plan alone (`with_segments`).
    """
    found = _price(prices, _all_parts(prices.analysis.segments, plans), pricer, on_progress)
    return [_predict(prices, plan, found) for plan in plans]


def compare_all(
    prices: StepPrices, plans: Sequence[CandidatePlan], *, pricer: Pricer, on_progress: OnProgress | None = None
) -> list[tuple[float, list[Failure]]]:
    """Returns the seconds of plans whose parts all run side by side, and what failed, which makes them infinite.

    A sum of pairs less a sum of segments needs times of one moment: if the machine has half of its speed in between, a
    chain of layers seems to take three times as long.
    """
    segments = prices.analysis.segments
    parts = _all_parts(segments, plans)
    programs = [part.write(prices.programs) for part in parts.values()]
    compared = pricer.compare(programs, groups=list(map(_group, parts)), on_progress=on_progress)
    found = dict(zip(parts, compared, strict=True))
    known = [_part_prices(segments, plan, found) for plan in plans]
    return [(_add_up(segments, of_parts, lambda price: price.time_s), failures) for of_parts, failures in known]


def with_segments(prices: StepPrices, plan: CandidatePlan, prediction: Prediction, *, pricer: Pricer) -> Prediction:
    """Returns the prediction with the prices of all segments; infinite for those that have none."""
    if prediction.segments:
        return prediction
    parts = {part.key: part for part in _single_parts(prices.analysis.segments, plan)}
    found = _price(prices, parts, pricer, None)
    failures = [price for price in map(found.get, parts) if isinstance(price, Failure)]
    return _with_sums(prices, plan, replace(prediction, failures=(*prediction.failures, *failures)), found)


def list_programs(
    programs: StepPrograms, plans: Sequence[CandidatePlan]
) -> tuple[list[ShardedProgram], list[Hashable]]:
    """Returns the programs that plans are predicted with, and the groups in which they compete.

    A segment alone competes with the strategies of its kind, as `price_segments` has them.
    """
    parts = _all_parts(programs.analysis.segments, plans)
    is_strategy = [key[1] is Storage.AS_USED and not key[2] and len(key[0]) == 1 for key in parts]
    groups = [key[0][0][0] if alone else _group(key) for key, alone in zip(parts, is_strategy, strict=True)]
    return [part.write(programs) for part in parts.values()], groups


def _price(
    prices: StepPrices, parts: Mapping[Key, _Part], pricer: Pricer, on_progress: OnProgress | None
) -> dict[Key, Price | Failure]:
    """Returns the prices of parts of plans, with those that the search has."""
    found = _known(prices)
    wanted = {key: part.write(prices.programs) for key, part in parts.items() if key not in found}
    new = pricer.price_all(list(wanted.values()), groups=list(map(_group, wanted)), on_progress=on_progress)
    return found | dict(zip(wanted, new, strict=True))


def _group(key: Key) -> Hashable:
    """Returns the same for parts that compete: other strategies of the same segments."""
    return tuple(kind for kind, _ in key[0])


def write_plan(programs: StepPrograms, plan: CandidatePlan) -> ShardedProgram:
    """Returns the program that a plan runs, on whole leaves, with the names of all its segments."""
    name = name_segments(programs.analysis.segments, plan.assignment, storage=plan.storage)
    program = write_whole_step(programs, plan.assignment, storage=plan.storage)
    return replace(program, name=name, fresh=batch_places(programs, program))


def batch_places(programs: StepPrograms, program: ShardedProgram) -> tuple[int, ...]:
    """Returns the arguments of a whole step that are no state, which a training loop brings from the host."""
    num_leaves = len(programs.analysis.step.arg_names)
    return tuple(place for place in range(num_leaves) if place not in program.donated)


def _known(prices: StepPrices) -> dict[Key, Price | Failure]:
    return {
        (((kind, strategy),), Storage.AS_USED, False): price
        for kind, found in prices.kinds.items()
        for strategy, price in zip(found.strategies, found.prices, strict=True)
    }


def _parts(segments: Segments, plan: CandidatePlan) -> list[_Part]:
    """Returns the parts of a plan that are priced: all segments together, or each and all pairs of neighbours."""
    if len(segments) <= MOST_PRICED_WHOLE:
        return [_Part(segments=segments, plan=plan, is_whole=True)]
    pairs = [_Part(segments=pair, plan=plan) for pair in itertools.pairwise(segments)]
    return [*_single_parts(segments, plan), *pairs]


def _single_parts(segments: Segments, plan: CandidatePlan) -> list[_Part]:
    return [_Part(segments=(segment,), plan=plan) for segment in segments]


def _all_parts(segments: Segments, plans: Sequence[CandidatePlan]) -> dict[Key, _Part]:
    """Returns the parts of all plans, each once."""
    found: dict[Key, _Part] = {}
    for part in (part for plan in plans for part in _parts(segments, plan)):
        found.setdefault(part.key, part)
    return found


def _predict(prices: StepPrices, plan: CandidatePlan, found: Mapping[Key, Price | Failure]) -> Prediction:
    segments = prices.analysis.segments
    known, failures = _part_prices(segments, plan, found)
    prediction = Prediction(
        name=plan.name,
        time_s=_add_up(segments, known, lambda price: price.time_s),
        sum_s=float("inf"),
        size_bytes=0 if failures else round(_add_up(segments, known, lambda price: price.peak_bytes)),
        is_modelled=any(price.provenance.pricer == "model" for price in known.values()),
        failures=tuple(failures),
    )
    is_known = all(isinstance(found.get(part.key), Price) for part in _single_parts(segments, plan))
    return _with_sums(prices, plan, prediction, found) if is_known and not failures else prediction


def _part_prices(
    segments: Segments, plan: CandidatePlan, found: Mapping[Key, Price | Failure]
) -> tuple[dict[Segments, Price], list[Failure]]:
    """Returns the prices of a plan's parts, and those that failed."""
    parts = {part.segments: found[part.key] for part in _parts(segments, plan)}
    known = {of_part: price for of_part, price in parts.items() if isinstance(price, Price)}
    return known, [price for price in parts.values() if isinstance(price, Failure)]


def _with_sums(
    prices: StepPrices, plan: CandidatePlan, prediction: Prediction, found: Mapping[Key, Price | Failure]
) -> Prediction:
    """Returns the prediction with the prices of its segments and their sums."""
    alone = [found[part.key] for part in _single_parts(prices.analysis.segments, plan)]
    times_s = [price.time_s if isinstance(price, Price) else float("inf") for price in alone]
    sizes = [price.peak_bytes if isinstance(price, Price) else 0 for price in alone]
    reshards_s = reshard_times_s(prices, plan.assignment)
    return replace(
        prediction,
        sum_s=sum(times_s) + sum(reshards_s),
        segments=tuple(zip(times_s, reshards_s, sizes, strict=True)),
    )


def _add_up(segments: Segments, known: Mapping[Segments, Price], value: Callable[[Price], float]) -> float:
    """Returns the seconds or bytes of all segments, from those of parts of the step; infinite if one has none."""
    if len(segments) <= MOST_PRICED_WHOLE:
        return value(known[segments]) if segments in known else math.inf
    # However noisy the measurements are, a pair takes no less than either of its segments.
    values = {part: value(price) for part, price in known.items()}
    pairs = list(itertools.pairwise(segments))
    if not values.keys() >= {*pairs, *((segment,) for segment in segments)}:
        return math.inf
    pairs_total = sum(max(values[pair], values[pair[:1]], values[pair[1:]]) for pair in pairs)
    return pairs_total - sum(values[segment,] for segment in segments[1:-1])
