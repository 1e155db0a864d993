"""Spends a budget of time on the programs that matter, and models the others.

All programs have a coarse price first, in closed form, by their FLOPs, the bytes they move and the volume they
communicate. By it a program is left out if it cannot win: alone, if it takes much longer than the fastest of its group;
of segments, if the fastest plan with it is much slower (`bound_plans`). The others are priced as long as there is time,
the best few of every group first, groups that recur most before others. Whatever is left has its coarse price, scaled
as those of its group that were priced turned out; so every plan can be compared, and the last word have training loops
of the fastest ones, if there is time to compile them.

Nothing that has begun can be stopped, so before it begins its time is estimated: by its equations, and by how long
earlier programs took.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxquard.intraop.plan.limits.pricing_pace import PricingPace
from jaxquard.pricing import Failure, FailureReason, LoopPricer, OnProgress, Price, Pricer, Progress, ShardedProgram

# The first entry of a group of reshards; the others are kinds of segments, or tuples of them.
RESHARD = "reshard"
# A program that by its coarse price takes so many times as long as the fastest of its group is not priced.
SLOW_FACTOR = 2.5
# Of a group, so many are priced before the next group has its turn.
_WAVE = 3
_CHUNK = 8
# Shares of the time after which segments, and then plans, have modelled prices; it ends before the budget does, as the
# plan is still to be written.
_SEGMENTS_UNTIL, _PLANS_UNTIL = 0.65, 0.9
# A comparison runs everything three times as often.
_COMPARED_RUNS = 3
# Training loops compare two plans at least.
_FEWEST_LOOPS = 2

# From the coarse prices of programs, for each the seconds that the fastest plan with it loses, as a share of the
# fastest of its group.
Slacks = Callable[[Sequence[Price]], Sequence[float]]
# The identity of a program in a search: a whole step of one segment has the name of that segment.
_Key = tuple[Hashable, str]


@dataclass(slots=True, kw_only=True)
class _Known:
    """Programs by what became of them.

    Attributes:
        coarse: the coarse prices of all.
        fine: the others, of those that were priced.
        pruned: those that cannot win.
    """

    coarse: dict[_Key, Price] = field(default_factory=dict)
    fine: dict[_Key, Price | Failure] = field(default_factory=dict)
    pruned: set[_Key] = field(default_factory=set)


class BudgetedPricer:
    """Prices within a budget of time.

    Args:
        pricer: the fine one.
        coarse: prices any program in milliseconds.
        recurrences: for each group, how often it stands in the step; once for others.
        step_equations: the number of equations of the whole step, to estimate the time of training loops.
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
        step_equations: int = 0,
        start_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pricer, self._coarse, self._recurrences = pricer, coarse, recurrences
        self._budget_s, self._clock = budget_s, clock
        self._step_equations = step_equations if isinstance(pricer, LoopPricer) else 0
        self._start_s = clock() if start_s is None else start_s
        self._pace = PricingPace()
        self._share = _SEGMENTS_UNTIL
        # For each group, by how much fine times and bytes exceed coarse ones.
        self._ratios: dict[Hashable, list[tuple[float, float]]] = {}
        self._known = _Known()

    def price(self, program: ShardedProgram) -> Price:
        """See `Pricer`."""
        return self._pricer.price(program)

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        slacks: Slacks | None = None,
    ) -> list[Price | Failure]:
        """Prices the most important programs until the time is over, and models the others; see `Pricer`.

        Args:
            slacks: bounds on plans, by which programs are ranked; else by their coarse prices alone.
        """
        groups = [None] * len(programs) if groups is None else groups
        keys = [(group, program.name) for group, program in zip(groups, programs, strict=True)]
        coarse = [self._coarse_price(key, program) for key, program in zip(keys, programs, strict=True)]
        order = self._order(coarse, keys, _group_slacks(coarse, groups) if slacks is None else slacks(coarse))
        while chunk := self._next_chunk(order, programs):
            order = order[len(chunk) :]
            start_s = self._clock()
            of_chunk = self._pricer.price_all(
                [programs[place] for place in chunk], groups=[groups[place] for place in chunk]
            )
            self._pace.note([programs[place] for place in chunk], self._clock() - start_s)
            for place, price in zip(chunk, of_chunk, strict=True):
                self._note(keys[place], coarse[place], price)
            self._report(on_progress, sum(key in self._known.fine for key in keys), programs, chunk[-1])
        # The first call has the segments; plans come next.
        self._share = _PLANS_UNTIL
        return [self._known.fine.get(key) or self._model(key[0], of) for key, of in zip(keys, coarse, strict=True)]

    def compare(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Price | Failure]:
        """Compares candidates side by side, if by the times so far there is time for that; see `Pricer`."""
        if self._clock() + _COMPARED_RUNS * self._pace.estimate_s(programs) > self._until_s:
            return self.price_all(programs, groups=groups, on_progress=on_progress)
        return self._pricer.compare(programs, groups=groups, on_progress=on_progress)

    def price_loops(
        self, programs: Sequence[ShardedProgram], *, budget_s: float, on_progress: OnProgress | None = None
    ) -> list[Price | Failure]:
        """Runs as many training loops as there is time for, of a pricer that can; see `LoopPricer`."""
        assert isinstance(self._pricer, LoopPricer)
        left_s = min(budget_s, self._start_s + self._budget_s - self._clock())
        count = self._pace.count_loops_within(programs, left_s)
        count = count if count >= min(_FEWEST_LOOPS, len(programs)) else 0
        late = [
            Failure(name=one.name, reason=FailureReason.TOO_SLOW, message="no time was left to compile it")
            for one in programs[count:]
        ]
        if not count:
            return list(late)
        return [*self._pricer.price_loops(programs[:count], budget_s=left_s, on_progress=on_progress), *late]

    @property
    def notes(self) -> tuple[str, ...]:
        """A note on the programs that were left out; none if all were priced."""
        known = self._known
        left_out = len(known.coarse) - len(known.fine)
        if not left_out:
            return ()
        pruned = len(known.pruned.difference(known.fine))
        return (
            f"time_budget_s={self._budget_s:g} left out {left_out} of {len(known.coarse)} programs, which have "
            f"modelled prices: {pruned} that by FLOPs and volume cannot win, {left_out - pruned} for lack of time",
        )

    @property
    def _until_s(self) -> float:
        """The end of the phase, by the clock: loops have their time if it is enough to compile them."""
        end_s = self._start_s + self._budget_s
        loops_s = self._pace.estimate_loops_s(self._step_equations, _FEWEST_LOOPS) if self._step_equations else 0.0
        reserved_s = loops_s if loops_s < _PLANS_UNTIL * (end_s - self._clock()) else 0.0
        return self._start_s + self._share * (self._budget_s - reserved_s)

    def _next_chunk(self, order: Sequence[int], programs: Sequence[ShardedProgram]) -> Sequence[int]:
        """Returns the first programs that are done before the end of the phase, as far as one knows."""
        most = _CHUNK if self._pace.is_known else self._pace.num_cores
        count = self._pace.count_within([programs[place] for place in order[:most]], self._until_s - self._clock())
        return order[:count]

    def _coarse_price(self, key: _Key, program: ShardedProgram) -> Price:
        if key not in self._known.coarse:
            self._known.coarse[key] = self._coarse.price(program)
        return self._known.coarse[key]

    def _order(self, coarse: Sequence[Price], keys: Sequence[_Key], slacks: Sequence[float]) -> list[int]:
        """Returns the places of the programs to price, the most important first."""
        of_group: dict[Hashable, list[int]] = {}
        first = {key: place for place, key in reversed(list(enumerate(keys)))}
        for place in sorted(first.values(), key=lambda place: (slacks[place], coarse[place].time_s)):
            of_group.setdefault(keys[place][0], []).append(place)
        ranked: list[tuple[int, float, int, int]] = []
        for group, places in of_group.items():
            weight = self._recurrences.get(group, 1) * coarse[places[0]].time_s
            kept = [place for place in places if slacks[place] <= SLOW_FACTOR - 1]
            self._known.pruned.update(keys[place] for place in places[len(kept) :])
            ranked += [
                (rank // _WAVE, -weight, rank, place)
                for rank, place in enumerate(kept)
                if keys[place] not in self._known.fine
            ]
        return [place for *_, place in sorted(ranked)]

    def _note(self, key: _Key, coarse: Price, price: Price | Failure) -> None:
        self._known.fine[key] = price
        if isinstance(price, Price) and coarse.time_s > 0 and coarse.peak_bytes > 0:
            ratio = price.time_s / coarse.time_s, price.peak_bytes / coarse.peak_bytes
            self._ratios.setdefault(key[0], []).append(ratio)

    def _model(self, group: Hashable, coarse: Price) -> Price:
        """Returns the coarse price, scaled as its group's prices are to their coarse ones, or else as all are."""
        known = self._ratios.get(group) or list(self._related_ratios(group))
        known = known or list(itertools.chain(*self._ratios.values()))
        times, sizes = zip(*known, strict=True) if known else ((1.0,), (1.0,))
        return replace(
            coarse,
            time_s=coarse.time_s * statistics.median(times),
            compute_s=None,
            communication_s=None,
            peak_bytes=round(coarse.peak_bytes * statistics.median(sizes)),
        )

    def _related_ratios(self, group: Hashable) -> Iterable[tuple[float, float]]:
        """Yields the ratios of other reshards, for a reshard; of the kinds of a group's segments, for several."""
        if not isinstance(group, tuple) or not group:
            return ()
        if group[0] == RESHARD:
            others = (other for other in self._ratios if isinstance(other, tuple) and other[0] == RESHARD)
        else:
            others = (kind for kind in group if kind in self._ratios)
        return itertools.chain(*(self._ratios[other] for other in others))

    def _report(
        self, on_progress: OnProgress | None, done: int, programs: Sequence[ShardedProgram], place: int
    ) -> None:
        if on_progress is not None:
            left_s = max(0.0, self._until_s - self._clock())
            name = programs[place].name
            on_progress(Progress(done=done, total=len(programs), name=name, num_cached=0, left_s=left_s))


def _group_slacks(coarse: Sequence[Price], groups: Sequence[Hashable]) -> list[float]:
    """Returns by how much programs are slower than the fastest of their group, as a share of its time."""
    best_s: dict[Hashable, float] = {}
    for price, group in zip(coarse, groups, strict=True):
        best_s[group] = min(best_s.get(group, price.time_s), price.time_s)
    return [
        price.time_s / best_s[group] - 1 if best_s[group] > 0 else 0.0
        for price, group in zip(coarse, groups, strict=True)
    ]
