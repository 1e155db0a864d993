"""The costs of a step's segments, for each storage of state and each kind of recomputation, from one set of prices.

A price is of a segment's whole program. It is split into forward, gradients, update and sums in the proportions that
the roofline of the same program has. Other storage, and recomputation, change some of the parts by the roofline alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxquard.intraop.plan.segment_prices import StepPrices, WrittenStrategies, make_chain, price_segments
from jaxquard.intraop.search.priced_segment import PricedSegment
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.segments.strategies import Strategy
from jaxquard.intraop.shardings.layouts import Assignment, Storage
from jaxquard.ir.jaxpr_tools import size_bytes
from jaxquard.planner.prices.strategy_cost import StrategyCost, StrategyCosts
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.stages.segment_costs import SegmentCost, SegmentCosts
from jaxquard.pricing import Failure, FailureReason, OnProgress, Price, Pricer
from jaxquard.pricing.roofline.value_dims import dims_of_spec, num_shards

# Returns whether a block, by its number, may have a choice on every axis.
Allowed = Callable[[int, tuple[str, ...]], bool]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCosts:
    """The costs of a step's segments, for one storage of state and one kind of recomputation.

    Attributes:
        strategies: for each segment, the strategies that its costs stand for, in their order.
        blocks: of each segment.
        axes: the mesh axes and their sizes.
    """

    segments: tuple[SegmentCosts, ...]
    strategies: tuple[tuple[Strategy, ...], ...] = field(repr=False)
    blocks: tuple[tuple[int, ...], ...] = field(repr=False)
    axes: Mapping[str, int]

    def assignment(self, chosen: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """Returns the choice of every block, given the place of each segment's strategy."""
        return {
            block: names
            for blocks, strategies, place in zip(self.blocks, self.strategies, chosen, strict=True)
            for block, names in zip(blocks, strategies[place], strict=True)
        }

    def places(self, assignment: Assignment) -> tuple[int, ...] | None:
        """Returns the place of each segment's strategy in an assignment; None if one of them has no cost."""
        found = []
        # Equal segments share their strategies; of those that are the same, the first counts.
        known: dict[int, dict[Strategy, int]] = {}
        for blocks, strategies in zip(self.blocks, self.strategies, strict=True):
            if id(strategies) not in known:
                places = reversed([*enumerate(strategies)])
                known[id(strategies)] = {without_single_axes(one, self.axes): place for place, one in places}
            wanted = without_single_axes(tuple(tuple(assignment[block]) for block in blocks), self.axes)
            if wanted not in known[id(strategies)]:
                return None
            found.append(known[id(strategies)][wanted])
        return tuple(found)


def without_single_axes(strategy: Strategy, axes: Mapping[str, int]) -> Strategy:
    """Returns a strategy without its choices on axes of one device, where all choices are the same."""
    return tuple(tuple(name for name, size in zip(names, axes.values(), strict=True) if size > 1) for names in strategy)


class PricedStrategies:
    """The prices of a step's segments on one mesh, from which costs follow without pricing again.

    Attributes:
        prices: of the strategies that were priced, and of reshards between segments.
        recipes: known assignments by name, whose strategies are among those priced where they are allowed.
        strategy_costs: the roofline of strategies.
        num_strategies: over all kinds of segments, that were ranked.
        num_pruned: of those, the ones that were not priced any further.
    """

    def __init__(
        self,
        prices: StepPrices,
        *,
        written: WrittenStrategies,
        costs: StrategyCosts,
        coarse: Mapping[tuple[int, Strategy], StrategyCost],
        is_coarse: bool,
        allowed: Allowed,
        recipes: Mapping[str, Assignment],
    ) -> None:
        self.prices = prices
        self.recipes = recipes
        self.num_strategies = len(coarse)
        self.num_pruned = len(coarse) - sum(map(len, written.values()))
        self.strategy_costs = costs
        self._written = written
        self._coarse = coarse
        self._is_coarse = is_coarse
        self._allowed = allowed
        self._stored: dict[tuple[int, Strategy, Storage], StrategyCost] = {}
        # Of every segment: what the search has of it, its strategies' places, and the bytes that enter.
        self._chain: tuple[tuple[PricedSegment, tuple[int, ...], int], ...] | None = None

    @property
    def analysis(self) -> Analysis:
        return self.prices.analysis

    @property
    def failures(self) -> list[Failure]:
        """The failures of programs without a price."""
        return self.prices.failures

    @property
    def provenance(self) -> str:
        """The source of the prices, such as "measured on 8 x cpu"."""
        found = [price for kind in self.prices.kinds.values() for price in kind.prices if isinstance(price, Price)]
        origins = [price.provenance for price in found]
        texts = [f"{origin.pricer} on {origin.num_devices} x {origin.device_kind}" for origin in origins]
        return ", ".join(dict.fromkeys(texts))

    @property
    def num_late(self) -> int:
        """The strategies for which the pricer had no time."""
        found = [price for kind in self.prices.kinds.values() for price in kind.prices]
        return sum(map(_is_late, found))

    def refine(
        self, pricer: Pricer, *, on_progress: OnProgress | None = None, end_s: float = math.inf
    ) -> "PricedStrategies":
        """Returns the same strategies with the prices of another pricer.

        Args:
            end_s: as in `Pricer.price_all`; the strategies of recipes come first, and reshards that are late keep the
                prices that they have.
        """
        prices = price_segments(
            self.prices.programs,
            pricer=pricer,
            written=self._written,
            on_progress=on_progress,
            end_s=end_s,
            ranks=None if math.isinf(end_s) else self._rank_strategies(),
        )
        known = {key: self.prices.reshards[key] if _is_late(found) else found for key, found in prices.reshards.items()}
        fine = PricedStrategies(
            replace(prices, reshards=known),
            written=self._written,
            costs=self.strategy_costs,
            coarse=self._coarse,
            is_coarse=False,
            allowed=self._allowed,
            recipes=self.recipes,
        )
        fine._stored = self._stored
        return fine

    def _rank_strategies(self) -> dict[int, list[Strategy]]:
        """Returns the strategies of each kind: those of recipes, then the others, the fastest first."""
        recipes = {kind: set[Strategy]() for kind in self._written}
        for segment in self.analysis.segments:
            for recipe in self.recipes.values():
                recipes[segment.kind].add(tuple(tuple(recipe[block]) for block in segment.blocks))
        return {
            kind: sorted(found, key=lambda one, kind=kind: (one not in recipes[kind], self._coarse[kind, one].time_s))
            for kind, found in self._written.items()
        }

    def find_unpriced(self) -> str:
        """Returns why a segment has no strategy with a price; "" if all have one."""
        for segment, (_, places, _) in zip(self.analysis.segments, self._read_chain(), strict=True):
            if not places:
                prices = self.prices.kinds[segment.kind].prices
                failures = [f"{price.name}: {price.message}" for price in prices if isinstance(price, Failure)]
                return next(iter(failures), f"segment {segment.number} has no strategy that is allowed")
        return ""

    def strategies(self) -> dict[tuple[int, ...], tuple[Strategy, ...]]:
        """Returns the strategies that were priced, by the blocks of each segment."""
        return {segment.blocks: self.prices.kinds[segment.kind].strategies for segment in self.analysis.segments}

    def costs(
        self,
        *,
        storage: Storage = Storage.AS_USED,
        recompute: Recompute = Recompute.NONE,
        can_begin_stage: Mapping[int, bool] | None = None,
    ) -> StepCosts:
        """Returns the costs of all segments.

        Args:
            storage: the layout of state between steps.
            recompute: the activations that a backward computes again.
            can_begin_stage: for each segment, by its number, whether a stage may begin there; by default at all.
        """
        kinds: dict[object, int] = {}
        known: dict[int, tuple[tuple[SegmentCost, ...], tuple[Strategy, ...]]] = {}
        made: dict[object, SegmentCosts] = {}
        segments, strategies = [], []
        for segment, (priced, places, input_bytes) in zip(self.analysis.segments, self._read_chain(), strict=True):
            kind = kinds.setdefault((id(priced), places), len(kinds))
            if kind not in known:
                known[kind] = self._segment_costs(segment, priced, places, storage, recompute)
            may_begin = can_begin_stage is None or can_begin_stage.get(segment.number, True)
            costs, chosen = known[kind]
            key = kind, may_begin, input_bytes
            if key not in made:
                made[key] = SegmentCosts(
                    kind=kind,
                    strategies=costs,
                    reshards_s=priced.reshards_s,
                    input_bytes=input_bytes,
                    can_begin_stage=may_begin,
                )
            segments.append(made[key])
            strategies.append(chosen)
        return StepCosts(
            segments=tuple(segments),
            strategies=tuple(strategies),
            blocks=tuple(segment.blocks for segment in self.analysis.segments),
            axes=self.analysis.axes,
        )

    def _read_chain(self) -> tuple[tuple[PricedSegment, tuple[int, ...], int], ...]:
        """Returns what does not depend on storage and recomputation."""
        if self._chain is None:
            sizes: dict[tuple[int, tuple[int, ...]], int] = {}
            found = []
            for segment, priced in zip(self.analysis.segments, make_chain(self.prices), strict=True):
                places = self._places(segment, priced)
                key = id(priced), places
                if key not in sizes:
                    sizes[key] = self._input_bytes(segment, places)
                found.append((priced, places, sizes[key]))
            self._chain = tuple(found)
        return self._chain

    def _places(self, segment: Segment, priced: PricedSegment) -> tuple[int, ...]:
        """Returns the places of the strategies that have a price and are allowed at this segment."""
        return tuple(
            place
            for place, strategy in enumerate(self.prices.kinds[segment.kind].strategies)
            if priced.times_s[place] < float("inf")
            and all(self._allowed(block, names) for block, names in zip(segment.blocks, strategy, strict=True))
        )

    def _segment_costs(
        self,
        segment: Segment,
        priced: PricedSegment,
        places: Sequence[int],
        storage: Storage,
        recompute: Recompute,
    ) -> tuple[tuple[SegmentCost, ...], tuple[Strategy, ...]]:
        kind = self.prices.kinds[segment.kind]
        costs = []
        for place in places:
            strategy, price = kind.strategies[place], kind.prices[place]
            assert isinstance(price, Price)
            costs.append(
                self._coarse[segment.kind, strategy].segment_cost(
                    recompute,
                    price=None if self._is_coarse else price,
                    stored=self._store(kind.segment, strategy, storage),
                    entry=priced.entries[place],
                    exit_layout=priced.exits[place],
                    scatters_sums=storage is Storage.ZERO_2,
                )
            )
        return tuple(costs), tuple(kind.strategies[place] for place in places)

    def _store(self, segment: Segment, strategy: Strategy, storage: Storage) -> StrategyCost:
        """Returns the cost of a strategy under a storage of state; ZeRO 2 has that of ZeRO 1."""
        storage = Storage.ZERO_1 if storage is Storage.ZERO_2 else storage
        if storage is Storage.AS_USED:
            return self._coarse[segment.kind, strategy]
        key = segment.kind, strategy, storage
        if key not in self._stored:
            self._stored[key] = self.strategy_costs.write_and_cost(segment, strategy, storage=storage)
        return self._stored[key]

    def _input_bytes(self, segment: Segment, places: Sequence[int]) -> int:
        """Returns the bytes that enter from the segment before, in the layout of the fastest strategy."""
        if not segment.number or not places:
            return 0
        layouts = self.prices.boundaries[segment.number - 1]
        prices = self.prices.kinds[segment.kind].prices
        fastest = min(places, key=lambda place: _time_s(prices[place]))
        axes = self.analysis.axes
        total = 0
        for aval, spec, is_forward in zip(
            layouts.boundary.avals, layouts.right[fastest], layouts.boundary.forward, strict=True
        ):
            if is_forward:
                shards = 1 if spec is None else num_shards(dims_of_spec(spec, tuple(axes)), tuple(axes.values()))
                total += -(-size_bytes(aval) // shards)
        return total


def _is_late(price: Price | Failure) -> bool:
    return isinstance(price, Failure) and price.reason is FailureReason.NO_TIME


def _time_s(price: Price | Failure) -> float:
    return price.time_s if isinstance(price, Price) else float("inf")
