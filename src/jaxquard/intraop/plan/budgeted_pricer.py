"""Spends a budget of time on the programs that matter, and models the others.

The usual plans come first, so that the answer is no worse than the best of them. If the time ends before all of them
have a price, every price is the coarse one, in closed form, and all plans compare by that, or as training loops.

All programs have a coarse price, by their FLOPs, the bytes they move and the volume they communicate. One that by it
takes much longer than the fastest of its group is left out. The others are priced until the time is over, the best few
of every group first, groups that recur most before others. Whatever is left has its coarse price, scaled as those of
its group that were priced turned out; training loops of the fastest plans come last.
"""

import math
import statistics
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

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

# The identity of a program in a search: a whole step of one segment has the name of that segment.
_Key = tuple[Hashable, str]


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
        self._pricer, self._coarse_pricer, self._recurrences = pricer, coarse, recurrences
        self._budget_s = budget_s
        self._start_s = time.monotonic() if start_s is None else start_s
        self._share = _SEGMENTS_UNTIL
        self._is_coarse = False
        # All programs that were asked for, those with a fine price, and those that cannot win.
        self._coarse: dict[_Key, Price] = {}
        self._fine: dict[_Key, Price | Failure] = {}
        self._pruned: set[_Key] = set()

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
        keyed = self._price_coarsely(programs, groups)
        self._ask(keyed, list(keyed), until_s=self._until(_USUAL_UNTIL), on_progress=on_progress)
        if not self._fine.keys() >= keyed.keys():
            self._is_coarse = True
            self._fine.clear()

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """Prices the most important programs until the time is over, and models the others; see `Pricer`."""
        groups = [None] * len(programs) if groups is None else groups
        keyed = self._price_coarsely(programs, groups)
        order = self._order(keyed)
        if not self._is_coarse:
            self._ask(keyed, order, until_s=min(end_s, self._until(self._share)), on_progress=on_progress)
        # The first call has the segments; plans come next.
        self._share = _PLANS_UNTIL
        keys = [(group, program.name) for group, program in zip(groups, programs, strict=True)]
        modelled = self._model([key for key in keyed if key not in self._fine])
        return [self._fine[key] if key in self._fine else modelled[key] for key in keys]

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
        if budget_s > 0:
            found = self._pricer.price_loops(programs, budget_s=budget_s, on_progress=on_progress, end_s=until_s)
            if sum(isinstance(one, Price) for one in found) >= min(_FEWEST_LOOPS, len(programs)):
                return found
        return [Failure(name=one.name, reason=FailureReason.NO_TIME, message="the time was over") for one in programs]

    @property
    def notes(self) -> tuple[str, ...]:
        """A note on the programs that were left out; none if all were priced."""
        budget = f"time_budget_s={self._budget_s:g}"
        if self._is_coarse:
            return (f"{budget} was too short for prices of the usual plans: all programs have modelled prices",)
        left_out = len(self._coarse) - len(self._fine)
        if not left_out:
            return ()
        pruned = len(self._pruned.difference(self._fine))
        return (
            f"{budget} left out {left_out} of {len(self._coarse)} programs, which have modelled prices: {pruned} that "
            f"by FLOPs and volume cannot win, {left_out - pruned} for lack of time",
        )

    def _until(self, share: float) -> float:
        """Returns the end of a phase, by `time.monotonic`."""
        return self._start_s + share * self._budget_s

    def _price_coarsely(
        self, programs: Sequence[ShardedProgram], groups: Sequence[Hashable]
    ) -> dict[_Key, ShardedProgram]:
        """Returns the programs by their identities, each once, when all of them have coarse prices."""
        keyed = {(group, program.name): program for group, program in zip(groups, programs, strict=True)}
        self._coarse |= {key: self._coarse_pricer.price(one) for key, one in keyed.items() if key not in self._coarse}
        return keyed

    def _ask(
        self,
        keyed: Mapping[_Key, ShardedProgram],
        order: Sequence[_Key],
        *,
        until_s: float,
        on_progress: OnProgress | None,
    ) -> None:
        """Notes the fine prices of programs in their order, of as many as there is time for."""
        found = self._pricer.price_all(
            [keyed[key] for key in order],
            groups=[group for group, _ in order],
            on_progress=on_progress,
            end_s=until_s,
        )
        self._fine |= {key: price for key, price in zip(order, found, strict=True) if not _is_late(price)}

    def _order(self, keyed: Mapping[_Key, ShardedProgram]) -> list[_Key]:
        """Returns the programs to price, the most important first: waves over all groups."""
        ranks: Counter[Hashable] = Counter()
        best_s: dict[Hashable, float] = {}
        ranked: dict[_Key, tuple[int, float, int]] = {}
        for key in sorted(keyed, key=lambda key: self._coarse[key].time_s):
            group, time_s = key[0], self._coarse[key].time_s
            if time_s > SLOW_FACTOR * best_s.setdefault(group, time_s):
                self._pruned.add(key)
                continue
            weight = self._recurrences.get(group, 1) * best_s[group]
            ranked[key] = ranks[group] // _WAVE, -weight, ranks[group]
            ranks[group] += 1
        return sorted((key for key in ranked if key not in self._fine), key=ranked.__getitem__)

    def _model(self, keys: Sequence[_Key]) -> dict[_Key, Price]:
        """Returns coarse prices, scaled as the fine prices of the group, or of reshards or others, exceed them."""
        ratios: dict[Hashable, list[tuple[float, float]]] = {}
        for key, price in self._fine.items():
            coarse = self._coarse[key]
            if isinstance(price, Price) and coarse.time_s > 0 and coarse.peak_bytes > 0:
                ratio = price.time_s / coarse.time_s, price.peak_bytes / coarse.peak_bytes
                for group in (key[0], _family(key[0])):
                    ratios.setdefault(group, []).append(ratio)
        found = {}
        for key in keys:
            coarse = self._coarse[key]
            known = ratios.get(key[0]) or ratios.get(_family(key[0])) or [(1.0, 1.0)]
            time_ratio, size_ratio = (statistics.median(values) for values in zip(*known, strict=True))
            found[key] = replace(
                coarse,
                time_s=coarse.time_s * time_ratio,
                compute_s=None,
                communication_s=None,
                peak_bytes=round(coarse.peak_bytes * size_ratio),
            )
        return found


def _is_late(price: Price | Failure) -> bool:
    return isinstance(price, Failure) and price.reason is FailureReason.NO_TIME


def _family(group: Hashable) -> str:
    """Returns what a group without fine prices is modelled as: like all reshards, or like all segments."""
    return RESHARD if isinstance(group, tuple) and group[:1] == (RESHARD,) else "segments"
