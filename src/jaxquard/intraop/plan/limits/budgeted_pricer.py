"""Spends a budget of time on the programs that matter, and models the others.

The usual plans come first, so that the answer is no worse than the best of them. If the time ends before all of them
have a price, every price is the coarse one, in closed form, and all plans compare by that, or as training loops.

All programs have a coarse price, by their FLOPs, the bytes they move and the volume they communicate. By it a program
is left out if it cannot win: alone, if it takes much longer than the fastest of its group; of segments, if the fastest
plan with it is much slower (`bound_plans`). The others are priced until the time is over, the best few of every group
first, groups that recur most before others. Whatever is left has its coarse price, scaled as those of its group that
were priced turned out; training loops of the fastest plans come last.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxquard.pricing import Failure, FailureReason, LoopPricer, OnProgress, Price, Pricer, ShardedProgram

# The first entry of a group of reshards; the others are kinds of segments, or tuples of them.
RESHARD = "reshard"
# A program that by its coarse price takes so many times as long as the fastest of its group is not priced.
SLOW_FACTOR = 2.5
# Of a group, so many are priced before the next group has its turn.
_WAVE = 3
# Shares of the budget after which the usual plans, the segments, other plans, their comparison and training loops end;
# the last ends before the budget does, as the plan is still to be written.
_USUAL_UNTIL, _SEGMENTS_UNTIL, _PLANS_UNTIL, _COMPARED_UNTIL, _LOOPS_UNTIL = 0.45, 0.6, 0.7, 0.75, 0.95
# Of the time of training loops, the share in which they are compiled.
_LOOPS_COMPILE = 0.7
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
        budget_s: of the whole search.
        start_s: when it began, by `time.monotonic`; by default now.
    """

    def __init__(
        self,
        pricer: Pricer,
        *,
        coarse: Pricer,
        recurrences: Mapping[Hashable, int],
        budget_s: float,
        start_s: float | None = None,
    ) -> None:
        self._pricer, self._coarse, self._recurrences = pricer, coarse, recurrences
        self._budget_s = budget_s
        self._start_s = time.monotonic() if start_s is None else start_s
        self._share = _SEGMENTS_UNTIL
        self._is_coarse = False
        # For each group, by how much fine times and bytes exceed coarse ones.
        self._ratios: dict[Hashable, list[tuple[float, float]]] = {}
        self._known = _Known()

    def price(self, program: ShardedProgram) -> Price:
        """See `Pricer`."""
        return self._pricer.price(program)

    def price_usual(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable],
        on_progress: OnProgress | None = None,
    ) -> None:
        """Prices all programs of the usual plans; if there is no time for that, prices are coarse from here on."""
        keys = _keys(programs, groups)
        coarse = [self._coarse_price(key, program) for key, program in zip(keys, programs, strict=True)]
        places = list({key: place for place, key in reversed(list(enumerate(keys)))}.values())
        self._ask(places, programs, keys, coarse, until_s=self._until(_USUAL_UNTIL), on_progress=on_progress)
        if not all(key in self._known.fine for key in keys):
            self._is_coarse = True
            self._known.fine.clear()
            self._ratios.clear()

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
        slacks: Slacks | None = None,
    ) -> list[Price | Failure]:
        """Prices the most important programs until the time is over, and models the others; see `Pricer`.

        Args:
            slacks: bounds on plans, by which programs are ranked; else by their coarse prices alone.
        """
        groups = [None] * len(programs) if groups is None else groups
        keys = _keys(programs, groups)
        coarse = [self._coarse_price(key, program) for key, program in zip(keys, programs, strict=True)]
        order = self._order(coarse, keys, _group_slacks(coarse, groups) if slacks is None else slacks(coarse))
        until_s = min(end_s, self._until(self._share))
        if not self._is_coarse:
            self._ask(order, programs, keys, coarse, until_s=until_s, on_progress=on_progress)
        # The first call has the segments; plans come next.
        self._share = _PLANS_UNTIL
        return [self._known.fine.get(key) or self._model(key[0], of) for key, of in zip(keys, coarse, strict=True)]

    def compare(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """Compares candidates side by side, if there is time for all of them; see `Pricer`."""
        until_s = min(end_s, self._until(_COMPARED_UNTIL))
        if not self._is_coarse and time.monotonic() < until_s:
            found = self._pricer.compare(programs, groups=groups, on_progress=on_progress, end_s=until_s)
            if not any(map(_is_late, found)):
                return found
        return self.price_all(programs, groups=groups, on_progress=on_progress)

    def price_loops(
        self,
        programs: Sequence[ShardedProgram],
        *,
        budget_s: float,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """Runs as many training loops as there is time for, of a pricer that can; see `LoopPricer`."""
        assert isinstance(self._pricer, LoopPricer)
        until_s = min(end_s, self._until(_LOOPS_UNTIL))
        budget_s = min(budget_s, _LOOPS_COMPILE * (until_s - time.monotonic()))
        late = [Failure(name=one.name, reason=FailureReason.NO_TIME, message="the time was over") for one in programs]
        if budget_s <= 0:
            return [*late]
        found = self._pricer.price_loops(programs, budget_s=budget_s, on_progress=on_progress, end_s=until_s)
        num_run = sum(isinstance(one, Price) for one in found)
        return found if num_run >= min(_FEWEST_LOOPS, len(programs)) else [*late]

    @property
    def notes(self) -> tuple[str, ...]:
        """A note on the programs that were left out; none if all were priced."""
        known, budget = self._known, f"time_budget_s={self._budget_s:g}"
        if self._is_coarse:
            return (f"{budget} was too short for prices of the usual plans: all programs have modelled prices",)
        left_out = len(known.coarse) - len(known.fine)
        if not left_out:
            return ()
        pruned = len(known.pruned.difference(known.fine))
        return (
            f"{budget} left out {left_out} of {len(known.coarse)} programs, which have modelled prices: {pruned} that "
            f"by FLOPs and volume cannot win, {left_out - pruned} for lack of time",
        )

    def _until(self, share: float) -> float:
        """Returns the end of a phase, by `time.monotonic`."""
        return self._start_s + share * self._budget_s

    def _ask(
        self,
        places: Sequence[int],
        programs: Sequence[ShardedProgram],
        keys: Sequence[_Key],
        coarse: Sequence[Price],
        *,
        until_s: float,
        on_progress: OnProgress | None,
    ) -> None:
        """Notes the fine prices of programs by their places, of as many as there is time for."""
        found = self._pricer.price_all(
            [programs[place] for place in places],
            groups=[keys[place][0] for place in places],
            on_progress=on_progress,
            end_s=until_s,
        )
        for place, price in zip(places, found, strict=True):
            if not _is_late(price):
                self._note(keys[place], coarse[place], price)

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


def _keys(programs: Sequence[ShardedProgram], groups: Sequence[Hashable]) -> list[_Key]:
    return [(group, program.name) for group, program in zip(groups, programs, strict=True)]


def _is_late(price: Price | Failure) -> bool:
    return isinstance(price, Failure) and price.reason is FailureReason.NO_TIME


def _group_slacks(coarse: Sequence[Price], groups: Sequence[Hashable]) -> list[float]:
    """Returns by how much programs are slower than the fastest of their group, as a share of its time."""
    best_s: dict[Hashable, float] = {}
    for price, group in zip(coarse, groups, strict=True):
        best_s[group] = min(best_s.get(group, price.time_s), price.time_s)
    return [
        price.time_s / best_s[group] - 1 if best_s[group] > 0 else 0.0
        for price, group in zip(coarse, groups, strict=True)
    ]
