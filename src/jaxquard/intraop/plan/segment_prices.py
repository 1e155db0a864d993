"""Prices every strategy of every kind of segment, and the resharding between segments (CFP, sections 4.2 and 4.3).

Segments of one kind are priced once. All values that cross a segment boundary are resharded in one program, forward and
backward together. Their layouts depend on few blocks on each side, so there is one program for each pair of layouts,
and only where they differ. Equation (7) counts the programs.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.sharding import PartitionSpec

from jaxquard.intraop.plan.budgeted_pricer import RESHARD
from jaxquard.intraop.search.frontier import FrontierPoint
from jaxquard.intraop.search.priced_segment import PricedSegment
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.segments.strategies import Strategy, segment_strategies
from jaxquard.intraop.shardings.boundaries import Boundary, BoundarySide, Specs
from jaxquard.intraop.shardings.layouts import Assignment
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.pricing import Failure, OnProgress, Price, Pricer, ShardedProgram, reshard_program

# Of every kind, so many strategies are priced before the next ones.
_WAVE = 3
# The values that one program reshards: the type as text, the sharding before, and the one after.
ReshardKey = tuple[tuple[str, PartitionSpec, PartitionSpec], ...]
# For each kind of segment, its strategies with their programs.
WrittenStrategies = dict[int, dict[Strategy, ShardedProgram]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindPrices:
    """The prices of a kind of segment.

    Attributes:
        segment: the one that was priced.
        prices: per strategy; a failure for one without a price.
    """

    segment: Segment
    strategies: tuple[Strategy, ...] = field(repr=False)
    prices: tuple[Price | Failure, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundaryLayouts:
    """A segment boundary, with the shardings on both sides, one for each strategy of the segment there."""

    boundary: Boundary
    left: tuple[Specs, ...] = field(repr=False)
    right: tuple[Specs, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrices:
    """The prices of a step's segments.

    Attributes:
        programs: writes the programs of the step.
        kinds: by kind of segment.
        boundaries: between segments, in order; the same object where they are alike.
        reshards: by what is resharded.
        rematerialized: the programs of which the partitioner gathers values whole, by name, with their number.
        num_programs: as equation (7) counts them, with the pairs of layouts that are the same.
    """

    programs: StepPrograms = field(repr=False, compare=False)
    kinds: Mapping[int, KindPrices]
    boundaries: tuple[BoundaryLayouts, ...] = field(repr=False)
    reshards: Mapping[ReshardKey, Price | Failure] = field(repr=False)
    num_programs: int
    rematerialized: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def analysis(self) -> Analysis:
        return self.programs.analysis

    @property
    def failures(self) -> list[Failure]:
        """The failures of the programs that have no price."""
        found = [price for kind in self.kinds.values() for price in kind.prices]
        found += self.reshards.values()
        return [price for price in found if isinstance(price, Failure)]


def price_segments(
    programs: StepPrograms,
    *,
    pricer: Pricer,
    batch_axis: str | None = None,
    written: WrittenStrategies | None = None,
    on_progress: OnProgress | None = None,
    end_s: float = math.inf,
    ranks: Mapping[int, Sequence[Strategy]] | None = None,
) -> StepPrices:
    """Prices all strategies of all kinds of segments, and all reshards between them.

    Args:
        written: the strategies to price, as `write_strategies` returns them; None for all.
        end_s: as in `Pricer.price_all`.
        ranks: the strategies of each kind, the most important ones first: a few of every kind are priced, then
            reshards, then a few more. None for one kind after the other.
    """
    written = write_strategies(programs, batch_axis=batch_axis) if written is None else written
    to_price = _Written(programs, written)
    order = to_price.order(ranks)
    found = pricer.price_all(
        [to_price.programs[place] for place in order],
        groups=[to_price.groups[place] for place in order],
        on_progress=on_progress,
        end_s=end_s,
    )
    by_place = dict(zip(order, found, strict=True))
    return to_price.with_prices([by_place[place] for place in range(len(order))])


class _Written:
    """All programs that are priced for the segments of a step.

    Attributes:
        programs: the strategies of each kind of segment, then the reshards.
        groups: programs of one group compete.
    """

    def __init__(self, step: StepPrograms, written: WrittenStrategies) -> None:
        self._step = step
        self._first: dict[int, Segment] = {}
        for segment in step.analysis.segments:
            self._first.setdefault(segment.kind, segment)
        self._strategies = {kind: list(written[kind]) for kind in self._first}
        self._boundaries = _lay_out_boundaries(step, self._strategies)
        self._reshards = _reshards(self._boundaries)
        self.programs = [program for kind in self._first for program in written[kind].values()]
        self.groups: list[Hashable] = [kind for kind in self._first for _ in written[kind]]
        self._num_strategies = len(self.programs)
        self.programs += [program for program, _ in self._reshards.values()]
        self.groups += [(RESHARD, number) for _, number in self._reshards.values()]

    def order(self, ranks: Mapping[int, Sequence[Strategy]] | None) -> list[int]:
        """Returns the places of the programs in the order in which they are priced."""
        places = range(len(self.programs))
        if ranks is None:
            return [*places]
        of_kinds = [ranks[kind].index(one) for kind, found in self._strategies.items() for one in found]
        waves = [rank // _WAVE for rank in of_kinds] + [0] * (len(places) - len(of_kinds))
        return sorted(places, key=waves.__getitem__)

    def with_prices(self, prices: Sequence[Price | Failure]) -> StepPrices:
        """Returns the prices of the segments, given those of all programs in order."""
        unique = dict.fromkeys(self._boundaries)
        pairs = sum(len(set(boundary.left)) * len(set(boundary.right)) for boundary in unique)
        return StepPrices(
            programs=self._step,
            kinds=_of_kinds(self._first, self._strategies, prices),
            boundaries=tuple(self._boundaries),
            reshards=dict(zip(self._reshards, prices[self._num_strategies :], strict=True)),
            num_programs=self._num_strategies + pairs,
            rematerialized={
                program.name: price.num_rematerialized
                for program, price in zip(self.programs, prices, strict=True)
                if isinstance(price, Price) and price.num_rematerialized
            },
        )


def write_strategies(programs: StepPrograms, *, batch_axis: str | None = None) -> WrittenStrategies:
    """Writes the programs of all strategies of all kinds of segments."""
    analysis = programs.analysis
    written: WrittenStrategies = {}
    for segment in analysis.segments:
        if segment.kind in written:
            continue
        strategies = segment_strategies(
            segment,
            graph=analysis.graph,
            blocks=analysis.blocks,
            axes=analysis.axes,
            batch_axis=batch_axis,
            products=analysis.products,
        )
        written[segment.kind] = {
            strategy: programs.write_segments([segment], dict(zip(segment.blocks, strategy, strict=True)))
            for strategy in strategies
        }
    return written


def make_chain(prices: StepPrices) -> list[PricedSegment]:
    """Returns the input of the search; segments in the same place of a repetition are one object."""
    made: dict[object, PricedSegment] = {}
    chain = []
    for place, segment in enumerate(prices.analysis.segments):
        before = prices.boundaries[place - 1] if place else None
        after = prices.boundaries[place] if place < len(prices.boundaries) else None
        key = (segment.kind, before, after)
        if key not in made:
            made[key] = _priced_segment(prices, *key)
        chain.append(made[key])
    return chain


def assignment_of(prices: StepPrices, point: FrontierPoint) -> dict[int, tuple[str, ...]]:
    """Returns the choice of every block in an answer of the search."""
    found: dict[int, tuple[str, ...]] = {}
    for segment, choice in zip(prices.analysis.segments, point.choices, strict=True):
        found.update(zip(segment.blocks, prices.kinds[segment.kind].strategies[choice], strict=True))
    return found


def reshard_times_s(prices: StepPrices, assignment: Assignment) -> list[float]:
    """Returns the time of resharding before every segment under an assignment; 0 for reshards without a price."""
    found = [0.0]
    for number, layouts in enumerate(prices.boundaries):
        boundary = layouts.boundary
        specs = []
        neighbours = prices.analysis.segments[number : number + 2]
        for side, segment in zip((boundary.left, boundary.right), neighbours, strict=True):
            specs.append(side.specs(prices.programs.layouts, [assignment[block] for block in segment.blocks]))
        found.append(_time_s(prices, boundary, *specs))
    return found


def _time_s(prices: StepPrices, boundary: Boundary, left: Specs, right: Specs) -> float:
    reshards = _key(boundary.reshards(left, right))
    price = prices.reshards.get(reshards)
    return price.time_s if isinstance(price, Price) else 0.0 if price is None else float("inf")


def _key(reshards: Sequence[tuple[Any, PartitionSpec, PartitionSpec]]) -> ReshardKey:
    return tuple((aval.str_short(), source, target) for aval, source, target in reshards)


def _lay_out_boundaries(programs: StepPrograms, strategies: Mapping[int, Sequence[Strategy]]) -> list[BoundaryLayouts]:
    """Returns the segment boundaries of a step, the same object for those that are alike."""
    known: dict[tuple[int, object], tuple[Specs, ...]] = {}
    made: dict[Boundary, BoundaryLayouts] = {}

    def specs(side: BoundarySide) -> tuple[Specs, ...]:
        key = side.segment.number, side.roles
        if key not in known:
            known[key] = tuple(side.specs(programs.layouts, names) for names in strategies[side.segment.kind])
        return known[key]

    found = []
    for boundary in programs.boundaries:
        if boundary not in made:
            made[boundary] = BoundaryLayouts(boundary=boundary, left=specs(boundary.left), right=specs(boundary.right))
        found.append(made[boundary])
    return found


def _reshards(boundaries: Sequence[BoundaryLayouts]) -> dict[ReshardKey, tuple[ShardedProgram, int]]:
    """Returns the resharding programs, each with the number of a boundary that needs it."""
    found: dict[ReshardKey, tuple[ShardedProgram, int]] = {}
    for number, layouts in enumerate(dict.fromkeys(boundaries)):
        for left in dict.fromkeys(layouts.left):
            for right in dict.fromkeys(layouts.right):
                reshards = layouts.boundary.reshards(left, right)
                key = _key(reshards)
                if reshards and key not in found:
                    name = ", ".join(f"{name} from {source} to {target}" for name, source, target in key)
                    avals, sources, targets = zip(*reshards, strict=True)
                    found[key] = reshard_program(f"reshard {name}", avals, sources, targets), number
    return found


def _of_kinds(
    first: Mapping[int, Segment], strategies: Mapping[int, Sequence[Strategy]], prices: Sequence[Price | Failure]
) -> dict[int, KindPrices]:
    found, start = {}, 0
    for kind, segment in first.items():
        stop = start + len(strategies[kind])
        found[kind] = KindPrices(segment=segment, strategies=tuple(strategies[kind]), prices=tuple(prices[start:stop]))
        start = stop
    return found


def _priced_segment(
    prices: StepPrices, kind: int, before: BoundaryLayouts | None, after: BoundaryLayouts | None
) -> PricedSegment:
    found = prices.kinds[kind].prices
    entries = (0,) * len(found) if before is None else _numbers(before.right)
    exits = (0,) * len(found) if after is None else _numbers(after.left)
    reshards = None
    if before is not None:
        left, right = dict.fromkeys(before.left), dict.fromkeys(before.right)
        reshards = np.array([[_time_s(prices, before.boundary, a, b) for b in right] for a in left])
    return PricedSegment(
        times_s=tuple(price.time_s if isinstance(price, Price) else float("inf") for price in found),
        sizes_bytes=tuple(price.peak_bytes if isinstance(price, Price) else 0 for price in found),
        entries=entries,
        exits=exits,
        reshards_s=reshards,
    )


def _numbers(specs: Sequence[Specs]) -> tuple[int, ...]:
    """Numbers the shardings, equal ones alike."""
    unique = list(dict.fromkeys(specs))
    return tuple(unique.index(of_strategy) for of_strategy in specs)
