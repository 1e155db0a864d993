"""Prices every strategy of every kind of segment, and the resharding between segments (CFP, sections 4.2 and 4.3).

Segments of one kind are priced once. All values that cross a segment boundary are resharded in one program, forward and
backward together. Their layouts depend on few blocks on each side, so there is one program for each pair of layouts,
and only where they differ. Equation (7) counts the programs.
"""

import itertools
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
# The values that one program reshards: the type, the sharding before, and the one after.
ReshardKey = tuple[tuple[Any, PartitionSpec, PartitionSpec], ...]
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
    """A segment boundary, with the shardings on both sides, one for each strategy of the segment there.

    Attributes:
        keys: what is resharded between each of the shardings on the left and each of those on the right.
    """

    boundary: Boundary
    left: tuple[Specs, ...] = field(repr=False)
    right: tuple[Specs, ...] = field(repr=False)
    keys: Mapping[tuple[Specs, Specs], ReshardKey] = field(repr=False)


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
    first: dict[int, Segment] = {}
    for segment in programs.analysis.segments:
        first.setdefault(segment.kind, segment)
    boundaries = _lay_out_boundaries(programs, written)
    # All programs, each with its group, in which they compete, and its wave.
    to_price: dict[Hashable, tuple[ShardedProgram, Hashable, int]] = {
        (kind, strategy): (program, kind, 0 if ranks is None else ranks[kind].index(strategy) // _WAVE)
        for kind in first
        for strategy, program in written[kind].items()
    }
    num_strategies = len(to_price)
    reshards: list[ReshardKey] = []
    for number, layouts in enumerate(dict.fromkeys(boundaries)):
        for key in layouts.keys.values():
            if key and key not in to_price:
                reshards.append(key)
                to_price[key] = _reshard_program(key), (RESHARD, number), 0
    order = sorted(to_price, key=lambda key: to_price[key][2])
    found = pricer.price_all(
        [to_price[key][0] for key in order],
        groups=[to_price[key][1] for key in order],
        on_progress=on_progress,
        end_s=end_s,
    )
    prices = dict(zip(order, found, strict=True))
    return StepPrices(
        programs=programs,
        kinds={
            kind: KindPrices(
                segment=segment,
                strategies=tuple(written[kind]),
                prices=tuple(prices[kind, strategy] for strategy in written[kind]),
            )
            for kind, segment in first.items()
        },
        boundaries=tuple(boundaries),
        reshards={key: prices[key] for key in reshards},
        num_programs=num_strategies + sum(len(layouts.keys) for layouts in dict.fromkeys(boundaries)),
        rematerialized={
            to_price[key][0].name: price.num_rematerialized
            for key, price in prices.items()
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
        left, right = (
            side.specs(prices.programs.layouts, [assignment[block] for block in segment.blocks])
            for side, segment in zip(
                (boundary.left, boundary.right), prices.analysis.segments[number : number + 2], strict=True
            )
        )
        found.append(_time_s(prices, boundary.reshards(left, right)))
    return found


def _time_s(prices: StepPrices, key: ReshardKey) -> float:
    price = prices.reshards.get(key)
    return price.time_s if isinstance(price, Price) else 0.0 if price is None else math.inf


def _reshard_program(key: ReshardKey) -> ShardedProgram:
    name = ", ".join(f"{aval.str_short()} from {source} to {target}" for aval, source, target in key)
    avals, sources, targets = zip(*key, strict=True)
    return reshard_program(f"reshard {name}", avals, sources, targets)


def _lay_out_boundaries(programs: StepPrograms, written: WrittenStrategies) -> list[BoundaryLayouts]:
    """Returns the segment boundaries of a step, the same object for those that are alike."""
    known: dict[tuple[int, object], tuple[Specs, ...]] = {}
    made: dict[Boundary, BoundaryLayouts] = {}

    def specs(side: BoundarySide) -> tuple[Specs, ...]:
        key = side.segment.number, side.roles
        if key not in known:
            known[key] = tuple(side.specs(programs.layouts, names) for names in written[side.segment.kind])
        return known[key]

    for boundary in programs.boundaries:
        if boundary not in made:
            left, right = specs(boundary.left), specs(boundary.right)
            pairs = itertools.product(dict.fromkeys(left), dict.fromkeys(right))
            keys = {(source, target): boundary.reshards(source, target) for source, target in pairs}
            made[boundary] = BoundaryLayouts(boundary=boundary, left=left, right=right, keys=keys)
    return [made[boundary] for boundary in programs.boundaries]


def _priced_segment(
    prices: StepPrices, kind: int, before: BoundaryLayouts | None, after: BoundaryLayouts | None
) -> PricedSegment:
    found = prices.kinds[kind].prices
    entries = (0,) * len(found) if before is None else _numbers(before.right)
    exits = (0,) * len(found) if after is None else _numbers(after.left)
    reshards = None
    if before is not None:
        times_s = [_time_s(prices, key) for key in before.keys.values()]
        reshards = np.array(times_s).reshape(-1, max(entries) + 1)
    return PricedSegment(
        times_s=tuple(price.time_s if isinstance(price, Price) else math.inf for price in found),
        sizes_bytes=tuple(price.peak_bytes if isinstance(price, Price) else 0 for price in found),
        entries=entries,
        exits=exits,
        reshards_s=reshards,
    )


def _numbers(specs: Sequence[Specs]) -> tuple[int, ...]:
    """Numbers the shardings, equal ones alike."""
    numbers: dict[Specs, int] = {}
    return tuple(numbers.setdefault(of_strategy, len(numbers)) for of_strategy in specs)
