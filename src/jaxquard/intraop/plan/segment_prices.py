"""Prices every strategy of every kind of segment, and the resharding between segments (CFP, section 4.2).

Segments of one kind are priced once. What crosses a border between segments is resharded in one program, forward and
backward together. How it is left and how it is wanted depends on few blocks on each side, so there is a program for
each pair of layouts, and only where they differ. Equation (7) counts the programs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.sharding import PartitionSpec

from jaxquard.intraop.search.priced_segment import PricedSegment
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.segments.strategies import Strategy, segment_strategies
from jaxquard.intraop.shardings.boundaries import Bank, Border, Specs, find_borders
from jaxquard.intraop.shardings.layouts import Assignment
from jaxquard.intraop.shardings.programs import write_segments
from jaxquard.pricing import Failure, OnProgress, Price, Pricer, ShardedProgram, reshard_program

# What one program reshards: types as text, from how they are cut to how they are wanted.
Moves = tuple[tuple[str, PartitionSpec, PartitionSpec], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindPrices:
    """The prices of a kind of segment.

    Attributes:
        segment: the one that was priced.
        prices: per strategy; a failure for one that was set aside.
    """

    segment: Segment
    strategies: tuple[Strategy, ...] = field(repr=False)
    prices: tuple[Price | Failure, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BorderLayouts:
    """A border, with how each strategy of the segments on both sides has what crosses it."""

    border: Border
    left: tuple[Specs, ...] = field(repr=False)
    right: tuple[Specs, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrices:
    """The prices of a step.

    Attributes:
        kinds: by kind of segment.
        borders: between segments, in order; the same object where they are alike.
        reshards: by what is resharded.
        num_programs: as equation (7) counts them, with the pairs of layouts that are the same.
    """

    kinds: Mapping[int, KindPrices]
    borders: tuple[BorderLayouts, ...] = field(repr=False)
    reshards: Mapping[Moves, Price | Failure] = field(repr=False)
    num_programs: int

    @property
    def failures(self) -> list[Failure]:
        """What was set aside."""
        found = [price for kind in self.kinds.values() for price in kind.prices]
        found += self.reshards.values()
        return [price for price in found if isinstance(price, Failure)]


def price_segments(
    analysis: Analysis, *, pricer: Pricer, batch_axis: str | None = None, on_progress: OnProgress | None = None
) -> StepPrices:
    """Prices what a search needs."""
    strategies: dict[int, list[Strategy]] = {}
    first: dict[int, Segment] = {}
    programs: list[ShardedProgram] = []
    groups: list[object] = []
    for segment in analysis.segments:
        if segment.kind not in first:
            first[segment.kind] = segment
            strategies[segment.kind] = segment_strategies(
                segment, blocks=analysis.blocks, axes=analysis.axes, batch_axis=batch_axis
            )
            for strategy in strategies[segment.kind]:
                assignment = dict(zip(segment.blocks, strategy, strict=True))
                programs.append(write_segments(analysis, [segment], assignment))
                groups.append(segment.kind)
    borders = _lay_out_borders(analysis, strategies)
    reshards = _reshards(borders)
    num_programs = len(programs) + sum(
        len(set(border.left)) * len(set(border.right)) for border in dict.fromkeys(borders)
    )
    programs += [program for program, _ in reshards.values()]
    groups += [("reshard", number) for _, number in reshards.values()]
    prices = pricer.price_all(programs, groups=groups, on_progress=on_progress)
    start = len(prices) - len(reshards)
    return StepPrices(
        kinds=_of_kinds(first, strategies, prices),
        borders=tuple(borders),
        reshards=dict(zip(reshards, prices[start:], strict=True)),
        num_programs=num_programs,
    )


def make_chain(analysis: Analysis, prices: StepPrices) -> list[PricedSegment]:
    """What the search looks at; segments in the same place of a repetition are one object."""
    made: dict[object, PricedSegment] = {}
    chain = []
    for place, segment in enumerate(analysis.segments):
        before = prices.borders[place - 1] if place else None
        after = prices.borders[place] if place < len(prices.borders) else None
        key = (segment.kind, before, after)
        if key not in made:
            made[key] = _priced_segment(prices, *key)
        chain.append(made[key])
    return chain


def reshard_times_s(analysis: Analysis, prices: StepPrices, assignment: Assignment) -> list[float]:
    """What an assignment takes to reshard before every segment, by these prices; nothing for what was not priced."""
    found = [0.0]
    for number, layouts in enumerate(prices.borders):
        border = layouts.border
        specs = []
        for bank, segment in zip((border.left, border.right), analysis.segments[number : number + 2], strict=True):
            specs.append(bank.specs(analysis, [assignment[block] for block in segment.blocks]))
        found.append(_time_s(prices, border, *specs))
    return found


def _time_s(prices: StepPrices, border: Border, left: Specs, right: Specs) -> float:
    moves = _key(border.moves(left, right))
    price = prices.reshards.get(moves)
    return price.time_s if isinstance(price, Price) else 0.0 if price is None else float("inf")


def _key(moves: Sequence[tuple[Any, PartitionSpec, PartitionSpec]]) -> Moves:
    return tuple((aval.str_short(), source, target) for aval, source, target in moves)


def _lay_out_borders(analysis: Analysis, strategies: Mapping[int, Sequence[Strategy]]) -> list[BorderLayouts]:
    """The borders of a step, each once for all that are alike."""
    known: dict[tuple[int, object], tuple[Specs, ...]] = {}
    made: dict[Border, BorderLayouts] = {}

    def specs(bank: Bank) -> tuple[Specs, ...]:
        key = bank.segment.number, bank.roles
        if key not in known:
            known[key] = tuple(bank.specs(analysis, names) for names in strategies[bank.segment.kind])
        return known[key]

    found = []
    for border in find_borders(analysis):
        if border not in made:
            made[border] = BorderLayouts(border=border, left=specs(border.left), right=specs(border.right))
        found.append(made[border])
    return found


def _reshards(borders: Sequence[BorderLayouts]) -> dict[Moves, tuple[ShardedProgram, int]]:
    """The resharding programs, each with the number of a border that needs it."""
    found: dict[Moves, tuple[ShardedProgram, int]] = {}
    for number, layouts in enumerate(dict.fromkeys(borders)):
        for left in dict.fromkeys(layouts.left):
            for right in dict.fromkeys(layouts.right):
                moves = layouts.border.moves(left, right)
                key = _key(moves)
                if moves and key not in found:
                    name = ", ".join(f"{name} from {source} to {target}" for name, source, target in key)
                    avals, sources, targets = zip(*moves, strict=True)
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
    prices: StepPrices, kind: int, before: BorderLayouts | None, after: BorderLayouts | None
) -> PricedSegment:
    found = prices.kinds[kind].prices
    entries = (0,) * len(found) if before is None else _numbers(before.right)
    exits = (0,) * len(found) if after is None else _numbers(after.left)
    reshards = None
    if before is not None:
        left, right = dict.fromkeys(before.left), dict.fromkeys(before.right)
        reshards = np.array([[_time_s(prices, before.border, a, b) for b in right] for a in left])
    return PricedSegment(
        times_s=tuple(price.time_s if isinstance(price, Price) else float("inf") for price in found),
        sizes_bytes=tuple(price.peak_bytes if isinstance(price, Price) else 0 for price in found),
        entries=entries,
        exits=exits,
        reshards_s=reshards,
    )


def _numbers(specs: Sequence[Specs]) -> tuple[int, ...]:
    """For each, its number among those that differ."""
    unique = list(dict.fromkeys(specs))
    return tuple(unique.index(of_strategy) for of_strategy in specs)
