"""Times programs in rounds, each once in every round, so that noise hits all alike.

The time limit is dynamic (section 4.3 of CFP): what is much slower than the best of its group so far is stopped after
its second warm run (one alone may have met with a busy machine). Its price is then the least of the few runs.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from jaxquard.pricing.contender import Contender
from jaxquard.pricing.watched_run import WatchedRun

# The first is cold, and the least of the others is compared.
_FEWEST_RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured.

    Attributes:
        num_warmups: runs before those that count.
        num_runs: runs that count.
        slow_factor: how many times as long as the best of its group a program may take before it is stopped.
        limit_s: seconds that all runs of one program together may take, and one alone before it counts as stalled.
    """

    num_warmups: int
    num_runs: int
    slow_factor: float
    limit_s: float


class BestTimes:
    """The least time so far in each group."""

    def __init__(self) -> None:
        self._least_s: dict[Hashable, float] = {}

    def note(self, group: Hashable, time_s: float) -> None:
        self._least_s[group] = min(time_s, self._least_s.get(group, time_s))

    def __getitem__(self, group: Hashable) -> float:
        return self._least_s.get(group, float("inf"))


def run_rounds(
    contenders: Mapping[int, Contender],
    *,
    groups: Mapping[int, Hashable],
    best: BestTimes,
    effort: Effort,
    watch: WatchedRun,
    on_error: Callable[[int, Exception], None],
) -> None:
    """Runs all of them; their times are in them afterwards, and what fails goes to `on_error`."""
    racing = dict(contenders)
    for round_ in range(effort.num_warmups + effort.num_runs):
        for number, contender in list(racing.items()):
            try:
                contender.times_s.append(watch.run(contender.run, limit_s=effort.limit_s))
            except Exception as error:  # One candidate's trouble; the others go on.
                on_error(number, error)
                del racing[number]
                continue
            if round_ > 0:
                best.note(groups[number], contender.warm_s)
            if _is_hopeless(contender, best[groups[number]], effort):
                contender.was_stopped_early = True
                del racing[number]


def _is_hopeless(contender: Contender, best_s: float, effort: Effort) -> bool:
    num_left = effort.num_warmups + effort.num_runs - len(contender.times_s)
    is_slow = len(contender.times_s) >= _FEWEST_RUNS and contender.warm_s > effort.slow_factor * best_s
    return num_left > 0 and (is_slow or sum(contender.times_s) > effort.limit_s)


def spread_of(times_s: Sequence[float]) -> float | None:
    """How far the upper quartile lies above the least, as a part of the least; None for fewer than four times."""
    if len(times_s) < 4:
        return None
    ordered = sorted(times_s)
    return ordered[(3 * len(ordered)) // 4] / ordered[0] - 1
