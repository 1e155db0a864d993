"""The price of a whole plan, out of the prices of its segments (equations (8) and (9))."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.layouts import Assignment, Storage, lay_out
from jaxquard.intraop.price_segments import StepPrices, reshard_time_s
from jaxquard.intraop.write_program import entry_spec, exit_spec, write_segment
from jaxquard.pricing import Failure, Price, Pricer, ShardedProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan that is not searched for but named: a baseline."""

    name: str
    assignment: Assignment
    storage: Storage = Storage.AS_USED


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a plan costs, by the prices of its segments; infinite if one of them has no price."""

    name: str
    time_s: float
    size_bytes: int


def predict_all(
    analysis: Analysis, prices: StepPrices, candidates: Sequence[Candidate], *, pricer: Pricer
) -> list[Prediction]:
    """Prices plans; segments of theirs that the search did not price are priced now."""
    wanted: dict[tuple[int, tuple, Storage], ShardedProgram] = {}
    for candidate in candidates:
        for segment in analysis.segments:
            key = _key(segment, candidate)
            if _known(prices, *key) is None and key not in wanted:
                wanted[key] = _write(analysis, prices, candidate, segment)
    extra = dict(zip(wanted, pricer.price_all(list(wanted.values()), groups=list(wanted)), strict=True))
    return [_predict(analysis, prices, candidate, extra) for candidate in candidates]


def _key(segment, candidate: Candidate) -> tuple[int, tuple, Storage]:
    strategy = tuple(tuple(candidate.assignment[block]) for block in segment.blocks)
    return segment.kind, strategy, candidate.storage


def _known(prices: StepPrices, kind: int, strategy: tuple, storage: Storage) -> Price | Failure | None:
    found = prices.kinds[kind]
    if storage is not Storage.AS_USED or strategy not in found.strategies:
        return None
    return found.prices[found.strategies.index(strategy)]


def _write(analysis: Analysis, prices: StepPrices, candidate: Candidate, segment) -> ShardedProgram:
    first = prices.kinds[segment.kind]
    names = [candidate.assignment[block] for block in segment.blocks]
    assignment = dict(zip(first.segment.blocks, names, strict=True))
    return write_segment(analysis, first.segment, assignment, crossing=first.crossing, storage=candidate.storage)


def _predict(
    analysis: Analysis,
    prices: StepPrices,
    candidate: Candidate,
    extra: Mapping[tuple[int, tuple, Storage], Price | Failure],
) -> Prediction:
    time_s, size_bytes = 0.0, 0
    left, before = None, None
    for segment in analysis.segments:
        key = _key(segment, candidate)
        price = _known(prices, *key) or extra[key]
        first = prices.kinds[segment.kind]
        assignment = dict(zip(first.segment.blocks, key[1], strict=True))
        layouts = lay_out(analysis, assignment, crossing=first.crossing, segment=first.segment)
        if before is not None and left is not None:
            time_s += reshard_time_s(prices, before.kind, segment.kind, left, entry_spec(layouts, first.crossing))
        left, before = exit_spec(layouts, first.crossing), segment
        if isinstance(price, Failure):
            return Prediction(name=candidate.name, time_s=float("inf"), size_bytes=0)
        time_s += price.time_s
        size_bytes += price.peak_bytes
    return Prediction(name=candidate.name, time_s=time_s, size_bytes=size_bytes)
