"""Prices every strategy of every kind of segment, and the resharding between segments (CFP, section 4.2).

Segments of one kind are priced once. What a segment leaves and what the next one wants depends on few blocks of
each, so resharding is priced for pairs of layouts, forward and backward together, and only where they differ. Equation
(7) counts the programs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jax.sharding import PartitionSpec

from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.cross_borders import Crossing, find_crossing
from jaxquard.intraop.layouts import lay_out
from jaxquard.intraop.search_segments import PricedSegment
from jaxquard.intraop.segments import Segment
from jaxquard.intraop.strategies import Strategy, segment_strategies
from jaxquard.intraop.write_program import entry_spec, exit_spec, write_segments
from jaxquard.pricing import Failure, OnProgress, Price, Pricer, ShardedProgram, reshard_program


@dataclass(frozen=True, slots=True, kw_only=True)
class KindPrices:
    """The prices of a kind of segment.

    Attributes:
        segment: the one that was priced.
        prices: per strategy; a failure for one that was set aside.
        entries, exits: per strategy, how the value that comes in is wanted, and how the one that goes out is left.
    """

    segment: Segment
    crossing: Crossing = field(repr=False)
    strategies: tuple[Strategy, ...] = field(repr=False)
    prices: tuple[Price | Failure, ...] = field(repr=False)
    entries: tuple[PartitionSpec, ...] = field(repr=False)
    exits: tuple[PartitionSpec, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrices:
    """The prices of a step.

    Attributes:
        kinds: by kind of segment.
        reshards: by pair of kinds and pair of layouts; nothing where they are the same.
        num_programs: as equation (7) counts them, with the pairs of layouts that are the same.
    """

    kinds: Mapping[int, KindPrices]
    reshards: Mapping[tuple[int, int], Mapping[tuple[PartitionSpec, PartitionSpec], Price | Failure]]
    num_programs: int

    @property
    def failures(self) -> list[Failure]:
        """What was set aside."""
        found = [price for kind in self.kinds.values() for price in kind.prices]
        found += [price for prices in self.reshards.values() for price in prices.values()]
        return [price for price in found if isinstance(price, Failure)]


@dataclass(slots=True, kw_only=True)
class _Candidates:
    segment: Segment
    crossing: Crossing
    strategies: list[Strategy]
    programs: list[ShardedProgram]
    entries: list[PartitionSpec]
    exits: list[PartitionSpec]


def price_segments(
    analysis: Analysis, *, pricer: Pricer, batch_axis: str | None = None, on_progress: OnProgress | None = None
) -> StepPrices:
    """Prices what a search needs."""
    kinds: dict[int, _Candidates] = {}
    for segment in analysis.segments:
        if segment.kind not in kinds:
            kinds[segment.kind] = _candidates(analysis, segment, batch_axis)
    pairs = sorted({(a.kind, b.kind) for a, b in zip(analysis.segments, analysis.segments[1:], strict=False)})
    moves = {pair: _moves(kinds[pair[0]], kinds[pair[1]]) for pair in pairs}
    programs = [program for kind in kinds.values() for program in kind.programs]
    groups: list[object] = [number for number, kind in kinds.items() for _ in kind.programs]
    reshards = [(pair, key, program) for pair in pairs for key, program in moves[pair].items() if program is not None]
    programs += [program for _, _, program in reshards]
    groups += [("reshard", pair) for pair, _, _ in reshards]
    prices = pricer.price_all(programs, groups=groups, on_progress=on_progress)
    of_reshards: dict[tuple[int, int], dict[tuple[PartitionSpec, PartitionSpec], Price | Failure]] = {
        pair: {} for pair in pairs
    }
    start = len(prices) - len(reshards)
    for (pair, key, _), price in zip(reshards, prices[start:], strict=True):
        of_reshards[pair][key] = price
    num_programs = start + sum(len(moves[pair]) for pair in pairs)
    return StepPrices(kinds=_with_prices(kinds, prices), reshards=of_reshards, num_programs=num_programs)


def make_chain(analysis: Analysis, prices: StepPrices) -> list[PricedSegment]:
    """What the search looks at; segments in the same place of a repetition are one object."""
    made: dict[tuple[int | None, int], PricedSegment] = {}
    chain = []
    before: Segment | None = None
    for segment in analysis.segments:
        key = (None if before is None else before.kind, segment.kind)
        if key not in made:
            made[key] = _priced_segment(prices, *key)
        chain.append(made[key])
        before = segment
    return chain


def reshard_time_s(prices: StepPrices, before: int, after: int, left: PartitionSpec, wanted: PartitionSpec) -> float:
    """Of the value between two kinds of segments, forward and back."""
    if left == wanted:
        return 0.0
    price = prices.reshards[before, after].get((left, wanted))
    return price.time_s if isinstance(price, Price) else 0.0 if price is None else float("inf")


def _candidates(analysis: Analysis, segment: Segment, batch_axis: str | None) -> _Candidates:
    crossing = find_crossing(analysis, segment)
    strategies = segment_strategies(analysis, segment, batch_axis=batch_axis)
    found = _Candidates(segment=segment, crossing=crossing, strategies=strategies, programs=[], entries=[], exits=[])
    for strategy in strategies:
        assignment = dict(zip(segment.blocks, strategy, strict=True))
        layouts = lay_out(analysis, assignment, crossing=crossing, segment=segment)
        found.programs.append(write_segments(analysis, [segment], assignment))
        found.entries.append(entry_spec(layouts, crossing))
        found.exits.append(exit_spec(layouts, crossing))
    return found


def _moves(before: _Candidates, after: _Candidates) -> dict[tuple[PartitionSpec, PartitionSpec], ShardedProgram | None]:
    """The resharding programs between two kinds; None where there is nothing to move."""
    value = before.crossing.exit
    keys = [(left, wanted) for left in dict.fromkeys(before.exits) for wanted in dict.fromkeys(after.entries)]
    if value is None:
        return dict.fromkeys(keys)
    aval = value.aval
    moves: dict[tuple[PartitionSpec, PartitionSpec], ShardedProgram | None] = {}
    for left, wanted in keys:
        name = f"reshard {aval.str_short()} from {left} to {wanted} and back"
        moves[left, wanted] = (
            None if left == wanted else reshard_program(name, [aval, aval], [left, wanted], [wanted, left])
        )
    return moves


def _with_prices(kinds: Mapping[int, _Candidates], prices: Sequence[Price | Failure]) -> dict[int, KindPrices]:
    found, start = {}, 0
    for number, kind in kinds.items():
        stop = start + len(kind.programs)
        found[number] = KindPrices(
            segment=kind.segment,
            crossing=kind.crossing,
            strategies=tuple(kind.strategies),
            prices=tuple(prices[start:stop]),
            entries=tuple(kind.entries),
            exits=tuple(kind.exits),
        )
        start = stop
    return found


def _priced_segment(prices: StepPrices, before: int | None, kind: int) -> PricedSegment:
    found = prices.kinds[kind]
    entries = list(dict.fromkeys(found.entries))
    exits = list(dict.fromkeys(found.exits))
    reshards = None
    if before is not None:
        left = list(dict.fromkeys(prices.kinds[before].exits))
        reshards = np.array([[reshard_time_s(prices, before, kind, spec, entry) for entry in entries] for spec in left])
    return PricedSegment(
        times_s=tuple(price.time_s if isinstance(price, Price) else float("inf") for price in found.prices),
        sizes_bytes=tuple(price.peak_bytes if isinstance(price, Price) else 0 for price in found.prices),
        entries=tuple(entries.index(spec) for spec in found.entries),
        exits=tuple(exits.index(spec) for spec in found.exits),
        reshards_s=reshards,
    )
