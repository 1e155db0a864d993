"""Spends a budget of time on the programs that matter, and models the others.

All programs have a coarse price first, in closed form, by their FLOPs, the bytes they move and the volume they
communicate. By it a program is left out if it takes much longer than the fastest of its group: it cannot win. The
others are priced as long as there is time, the fastest few of every group first, groups that recur most before others.
Whatever is left has its coarse price, scaled as those of its group that were priced turned out; so every plan can be
compared, and the last word have training loops of the fastest ones.
"""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxquard.pricing import Failure, LoopPricer, OnProgress, Price, Pricer, Progress, ShardedProgram

# A program that by its coarse price takes so many times as long as the fastest of its group is not priced.
_SLOW_FACTOR = 2.5
# Of a group, so many are priced before the next group has its turn.
_WAVE = 3
_CHUNK = 8
# Shares of the budget after which segments, and then plans, have modelled prices; what is left is for training loops.
_SEGMENTS_UNTIL, _PLANS_UNTIL = 0.5, 0.75
# A comparison runs everything three times as often.
_COMPARED_RUNS = 3


@dataclass(slots=True, kw_only=True)
class _Counts:
    """Programs by what became of them."""

    asked: int = 0
    priced: int = 0
    pruned: int = 0


class BudgetedPricer:
    """Prices within a budget of time.

    Args:
        pricer: the fine one.
        coarse: prices any program in milliseconds.
        recurrences: for each group, how often it stands in the step; once for others.
        budget_s: of the whole search.
        start_s: when it began, by the clock; by default now.
        clock: the seconds that pass.
    """

    def __init__(
        self,
        pricer: Pricer,
        *,
        coarse: Pricer,
        recurrences: Mapping[Hashable, int],
        budget_s: float,
        start_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pricer, self._coarse, self._recurrences = pricer, coarse, recurrences
        self._budget_s, self._clock = budget_s, clock
        self._start_s = clock() if start_s is None else start_s
        self._until_s = self._start_s + _SEGMENTS_UNTIL * budget_s
        # For each group, by how much fine times and bytes exceed coarse ones.
        self._ratios: dict[Hashable, list[tuple[float, float]]] = {}
        self._spent_s, self._counts = 0.0, _Counts()

    def price(self, program: ShardedProgram) -> Price:
        """See `Pricer`."""
        return self._pricer.price(program)

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Price | Failure]:
        """Prices the most important programs until the time is over, and models the others; see `Pricer`."""
        groups = [None] * len(programs) if groups is None else groups
        coarse = [self._coarse.price(program) for program in programs]
        order = self._order(coarse, groups)
        found: dict[int, Price | Failure] = {}
        while order and self._clock() < self._until_s:
            chunk, order = order[:_CHUNK], order[_CHUNK:]
            start_s = self._clock()
            of_chunk = self._pricer.price_all(
                [programs[place] for place in chunk], groups=[groups[place] for place in chunk]
            )
            self._spent_s += self._clock() - start_s
            for place, price in zip(chunk, of_chunk, strict=True):
                found[place] = price
                self._note(groups[place], coarse[place], price)
            self._report(on_progress, len(found), len(programs), programs[chunk[-1]].name)
        self._counts.asked += len(programs)
        self._counts.priced += len(found)
        # The first call has the segments; plans come next.
        self._until_s = self._start_s + _PLANS_UNTIL * self._budget_s
        return [found.get(place) or self._model(groups[place], coarse[place]) for place in range(len(programs))]

    def compare(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Price | Failure]:
        """Compares candidates side by side, if by the times so far there is time for that; see `Pricer`."""
        each_s = self._spent_s / max(1, self._counts.priced)
        if self._clock() + _COMPARED_RUNS * each_s * len(programs) > self._until_s:
            return self.price_all(programs, groups=groups, on_progress=on_progress)
        return self._pricer.compare(programs, groups=groups, on_progress=on_progress)

    def price_loops(
        self, programs: Sequence[ShardedProgram], *, budget_s: float, on_progress: OnProgress | None = None
    ) -> list[Price | Failure]:
        """Runs training loops in the time that is left, of a pricer that can; see `LoopPricer`."""
        assert isinstance(self._pricer, LoopPricer)
        left_s = max(0.0, self._start_s + self._budget_s - self._clock())
        return self._pricer.price_loops(programs, budget_s=min(budget_s, left_s), on_progress=on_progress)

    @property
    def notes(self) -> tuple[str, ...]:
        """A note on the programs that were left out; none if all were priced."""
        counts = self._counts
        left_out = counts.asked - counts.priced
        if not left_out:
            return ()
        return (
            f"time_budget_s={self._budget_s:g} left out {left_out} of {counts.asked} programs, which have modelled "
            f"prices: {counts.pruned} that by FLOPs and volume take over {_SLOW_FACTOR} times as long as the best of "
            f"their kind, {left_out - counts.pruned} for lack of time",
        )

    def _order(self, coarse: Sequence[Price], groups: Sequence[Hashable]) -> list[int]:
        """Returns the places of the programs to price, the most important first."""
        of_group: dict[Hashable, list[int]] = {}
        for place in sorted(range(len(groups)), key=lambda place: coarse[place].time_s):
            of_group.setdefault(groups[place], []).append(place)
        ranked: list[tuple[int, float, int, int]] = []
        for group, places in of_group.items():
            best_s = coarse[places[0]].time_s
            weight = self._recurrences.get(group, 1) * best_s
            kept = [place for place in places if coarse[place].time_s <= _SLOW_FACTOR * best_s]
            self._counts.pruned += len(places) - len(kept)
            ranked += [(rank // _WAVE, -weight, rank, place) for rank, place in enumerate(kept)]
        return [place for *_, place in sorted(ranked)]

    def _note(self, group: Hashable, coarse: Price, price: Price | Failure) -> None:
        if isinstance(price, Price) and coarse.time_s > 0 and coarse.peak_bytes > 0:
            ratio = price.time_s / coarse.time_s, price.peak_bytes / coarse.peak_bytes
            self._ratios.setdefault(group, []).append(ratio)

    def _model(self, group: Hashable, coarse: Price) -> Price:
        """Returns the coarse price, scaled as its group's prices are to their coarse ones, or else as all are."""
        known = self._ratios.get(group) or [ratio for ratios in self._ratios.values() for ratio in ratios]
        times, sizes = zip(*known, strict=True) if known else ((1.0,), (1.0,))
        return replace(
            coarse,
            time_s=coarse.time_s * statistics.median(times),
            compute_s=None,
            communication_s=None,
            peak_bytes=round(coarse.peak_bytes * statistics.median(sizes)),
        )

    def _report(self, on_progress: OnProgress | None, done: int, total: int, name: str) -> None:
        if on_progress is not None:
            left_s = max(0.0, self._until_s - self._clock())
            on_progress(Progress(done=done, total=total, name=name, num_cached=0, left_s=left_s))
