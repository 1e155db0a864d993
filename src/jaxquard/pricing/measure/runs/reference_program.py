"""A reference program corrects for the drift of the machine: it runs in every round, and shows a slow machine.

All programs of a round suffer alike when the machine is busy with something else, but those of other rounds do not, and
their prices are compared. Seen on 16 cores, of which other work took some at times: a round of whole steps ran for
seconds at 0.4 to 0.6 of its speed, all of its programs alike, and a plan of 13.5 ms was priced at 34.9 ms. So a program
of the first round runs in all further ones; where it takes longer than it did at best, the round is run again.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Hashable, Mapping

from jaxquard.errors import PricingError
from jaxquard.pricing.end_of_time import StalledError
from jaxquard.pricing.measure.runs.run_rounds import RunBudget, run_rounds
from jaxquard.pricing.measure.runs.timed_program import TimedProgram
from jaxquard.pricing.measure.runs.watched_run import WatchedRun
from jaxquard.pricing.outcomes import BestTimes

_log = logging.getLogger(__name__)

# Its place in a round; the others have theirs from 0 on.
_PLACE = -1
# A round that takes so much longer, as a part, is run again, but so often at most, and only as long as all rounds that
# are run again take no more than some seconds and a part of the time of all others.
_TOLERANCE = 0.1
_MOST_REPEATS = 3
_FREE_S, _REPEATED_SHARE = 10.0, 0.5
# How often it is tried again where it stalls, which it never did before.
_MOST_WAITS = 2


class ReferenceProgram:
    """Runs rounds, again where the machine was slow; the program that keeps the pace stays in memory until `stop`."""

    def __init__(self) -> None:
        self._program: TimedProgram | None = None
        self._minimum_s = float("inf")
        self._run_s = self._repeated_s = 0.0

    def stop(self) -> None:
        """Lets go of the program; the next round gives another."""
        self._program, self._minimum_s = None, float("inf")

    def run(
        self,
        timed_programs: Mapping[int, TimedProgram],
        *,
        groups: Mapping[int, Hashable],
        best: BestTimes,
        budget: RunBudget,
        watch: WatchedRun,
        on_error: Callable[[int, Exception], None],
        small: Collection[int],
        on_round: Callable[[int, int], None] = lambda done, most: None,
    ) -> None:
        """Runs rounds as `run_rounds` does; the times of the round with the best pace are kept.

        Args:
            timed_programs: `on_error` takes what fails out of it.
            small: those that may stay in memory.

        Raises:
            PricingError: if even the program that keeps the pace stalls.
        """

        def run_once() -> tuple[float, float]:
            """The pace, and the seconds that it took."""
            start_s = time.perf_counter()
            pace = self._run_once(timed_programs, groups, best, budget, watch, on_error, on_round)
            return pace, time.perf_counter() - start_s

        pace, took_s = run_once()
        self._run_s += took_s
        for _ in range(_MOST_REPEATS):
            if pace <= 1 + _TOLERANCE or not self._has_time(took_s, budget.end_s):
                break
            _log.info("a round took %.2f times as long as it should, and is run again", pace)
            series = {number: timed.series for number, timed in timed_programs.items()}
            again, took_s = run_once()
            self._repeated_s += took_s
            if again < pace:
                pace = again
                continue
            for number, timed in timed_programs.items():
                timed.series = series[number]
        if self._program is None:
            self._choose({number: timed_programs[number] for number in small if number in timed_programs}, budget)

    def _has_time(self, needed_s: float, end_s: float) -> bool:
        if time.monotonic() + 2 * needed_s > end_s:
            return False
        return self._repeated_s + needed_s <= _FREE_S + _REPEATED_SHARE * self._run_s

    def _run_once(
        self,
        timed_programs: Mapping[int, TimedProgram],
        groups: Mapping[int, Hashable],
        best: BestTimes,
        budget: RunBudget,
        watch: WatchedRun,
        on_error: Callable[[int, Exception], None],
        on_round: Callable[[int, int], None],
    ) -> float:
        """Returns how much longer the reference took than at best; 1 if there is none."""
        active = dict(timed_programs)
        if self._program is not None:
            active[_PLACE] = self._program
        for timed in active.values():
            timed.start_series()

        def note_error(number: int, error: Exception) -> None:
            if number == _PLACE:
                if isinstance(error, StalledError):
                    self._wait_for_devices(budget, watch)
                self.stop()
            else:
                on_error(number, error)

        run_rounds(
            active,
            groups={**groups, _PLACE: self},
            best=best,
            budget=budget,
            watch=watch,
            on_error=note_error,
            on_round=on_round,
        )
        if self._program is None:
            return 1.0
        time_s = self._program.minimum_s(budget.num_warmups)
        pace = time_s / self._minimum_s
        self._minimum_s = min(time_s, self._minimum_s)
        return pace

    def _wait_for_devices(self, budget: RunBudget, watch: WatchedRun) -> None:
        """Tries our program again: one that was left behind as too slow may still have been running."""
        assert self._program is not None
        for _ in range(_MOST_WAITS):
            with contextlib.suppress(StalledError):
                watch.run(self._program.run, limit_s=budget.limit_s)
                return
        raise PricingError(
            f"the devices do not answer any more: a program that has run before did not end in {_MOST_WAITS + 1} times "
            f"{budget.limit_s:g} s. What was last rejected as too slow may still be running. Prices so far are kept, "
            "if there is a cache; start again, with a larger limit_s of the pricer if that one only takes long."
        )

    def _choose(self, timed_programs: Mapping[int, TimedProgram], budget: RunBudget) -> None:
        """Takes one of middling time."""
        fair = [timed for timed in timed_programs.values() if not timed.was_stopped_early]
        if fair:
            ordered = sorted(fair, key=lambda timed: timed.minimum_s(budget.num_warmups))
            self._program = ordered[len(ordered) // 2]
            self._minimum_s = self._program.minimum_s(budget.num_warmups)
