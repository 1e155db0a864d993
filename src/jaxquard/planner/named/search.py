"""The fastest strategies of a step, exactly: prices are asked for in the order of their bounds on time.

A strategy whose bound on memory exceeds the limit is never priced. The others are priced from the smallest bound on
time upwards, until no bound is below the slowest of the answers: what is left cannot be among them.
"""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from jaxquard.planner.named.bounds import BoundedChoice, StepBounds
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.named.space import StrategySpace
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.price_step import StepPrice

_REPORT_EVERY = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStrategy:
    """A strategy with its price in closed form."""

    parallelism: Parallelism
    price: StepPrice

    @property
    def order(self) -> tuple:
        """A key to sort by: the fastest first; of equal ones the one with less memory, then the simpler one."""
        par = self.parallelism
        degrees = (par.num_stages, par.tensor, par.context, par.expert, par.zero, par.microbatch)
        return self.price.time_s, self.price.peak_bytes, degrees, par.sequence, par.recompute, par.schedule


@dataclass(slots=True, kw_only=True)
class StrategySearch:
    """A search over all strategies of a step; prices that were asked for are kept.

    Attributes:
        deadline_s: the reading of `time.monotonic` at which no more strategies are priced.
        on_progress: called with the strategies priced, those that fit by their bound, and a word.
        has_ended_early: strategies that might have been faster were left when the time was over.
    """

    step: ModelStep
    space: StrategySpace = field(repr=False)
    deadline_s: float | None = None
    on_progress: Callable[[int, int, str], None] | None = field(default=None, repr=False)
    has_ended_early: bool = False
    _strategies: dict[int, Parallelism] = field(default_factory=dict, repr=False)
    _prices: dict[int, PricedStrategy] = field(default_factory=dict, repr=False)
    _ordered: list[tuple[float, int, BoundedChoice]] = field(default_factory=list, repr=False)
    _smallest: list[tuple[float, int, BoundedChoice]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        bounds, limit = StepBounds(self.step), self.step.limit_bytes
        for index, mesh in enumerate(self.space.meshes):
            smallest: BoundedChoice | None = None
            for choice in bounds.choices(mesh):
                if choice[0] <= limit:
                    self._ordered.append((choice[1], index, choice))
                if smallest is None or choice[0] < smallest[0]:
                    smallest = choice
            if smallest is not None:
                self._smallest.append((smallest[0], index, smallest))
        self._ordered.sort()

    @property
    def num_priced(self) -> int:
        """Strategies with a price of their own."""
        return len(self._prices)

    @property
    def num_fitting(self) -> int:
        """Strategies that may fit by their bound."""
        return len(self._ordered)

    @property
    def num_unpriced(self) -> int:
        """Strategies that no bound rules out, and for which no time was left."""
        return self.num_fitting - self.num_priced if self.has_ended_early else 0

    def fastest(
        self, count: int = 1, allows: Callable[[Parallelism], bool] = lambda _: True
    ) -> tuple[PricedStrategy, ...]:
        """Returns the fastest strategies that fit the memory, the fastest first.

        Args:
            allows: of which strategies.
        """
        found: list[PricedStrategy] = []
        for bound_s, priced in self._in_order(allows):
            if len(found) == count and bound_s >= found[-1].price.time_s:
                break
            if priced().price.peak_bytes <= self.step.limit_bytes:
                found = sorted([*found, priced()], key=lambda item: item.order)[:count]
        return tuple(found)

    def rank(self, time_s: float) -> int:
        """Returns the place of a time among all strategies that fit: 1 if none is faster."""
        faster = 0
        for bound_s, priced in self._in_order(lambda _: True):
            if bound_s >= time_s:
                break
            price = priced().price
            faster += price.time_s < time_s and price.peak_bytes <= self.step.limit_bytes
        return faster + 1

    def smallest(self, count: int = 20) -> tuple[PricedStrategy, ...]:
        """Returns strategies with the smallest bounds on memory, one for each of so many meshes."""
        strategies = [self._build(index, choice) for _, index, choice in sorted(self._smallest)[:count]]
        return tuple(PricedStrategy(parallelism=item, price=self.step.price(item)) for item in strategies)

    def _in_order(self, allows: Callable[[Parallelism], bool]) -> Iterator[tuple[float, Callable[[], PricedStrategy]]]:
        for place, (bound_s, index, choice) in enumerate(self._ordered):
            if place not in self._strategies:
                self._strategies[place] = self._build(index, choice)
            if not allows(self._strategies[place]):
                continue
            if place not in self._prices and self.deadline_s is not None and time.monotonic() > self.deadline_s:
                self.has_ended_early = True
                return
            yield bound_s, functools.partial(self._priced, place)

    def _build(self, index: int, choice: BoundedChoice) -> Parallelism:
        return self.space.meshes[index].strategy(*choice[2:])

    def _priced(self, place: int) -> PricedStrategy:
        if place not in self._prices:
            strategy = self._strategies[place]
            self._prices[place] = PricedStrategy(parallelism=strategy, price=self.step.price(strategy))
            if self.on_progress and self.num_priced % _REPORT_EVERY == 0:
                self.on_progress(self.num_priced, self.num_fitting, "strategies priced")
        return self._prices[place]
