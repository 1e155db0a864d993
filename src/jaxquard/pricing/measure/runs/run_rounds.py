"""Times programs in rounds, each once in every round, so that noise hits all alike.

The time limit is dynamic (section 4.3 of CFP): what is much slower than the best of its group so far is stopped after
its third warm run (one alone may have met with a busy machine). Its price is then the minimum of the few runs.

Where the machine is busy with other things, ten runs may all have met with them. So, beyond the paper, the rounds go on
until the minimum time of each program is confirmed: three of its runs lie within 5 % of each other at the low end. All
programs of a round get the same number of runs, as more of them make a lower minimum. Seen on 2 cores with a load of 6
to 10, in 6 repetitions each of two rounds of 8 strategies of a GPT layer (5 to 13 ms): the minimum of ten runs lay 15
and 18 % over the best ever seen (median), with a standard deviation of 13 and 41 %; with this rule, after 24 and 29
runs, 10 % over it, with 8 and 4 %. Asking for a total time instead (0.2 s) changed little: a busy machine reaches it
sooner.

Candidates that are clearly behind after the planned runs have no more; the others run on as long as allowed.
"""

import math
import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from jaxquard.pricing.end_of_time import OutOfTimeError
from jaxquard.pricing.measure.runs.paired_times import paired_times
from jaxquard.pricing.measure.runs.timed_program import TimedProgram
from jaxquard.pricing.measure.runs.watched_run import WatchedRun
from jaxquard.pricing.outcomes import BestTimes

# The first is cold, and the minimum of the others is compared.
_FEWEST_RUNS = 4
# So many runs confirm the minimum, if they take at most so much more, as a part of it.
_NUM_ALIKE, _ALIKE = 3, 0.05
# After so many more runs each, candidates are looked at again.
_RUNS_BETWEEN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudget:
    """The budget of a measurement: how many runs, and for how long.

    Attributes:
        num_warmups: runs before those that count.
        num_runs: runs that count, at least.
        max_runs: runs that count, at most; more than `num_runs` are made only until the minimum is confirmed.
        extra_s: seconds that those may take for each program, in the mean over a round; or as long as the planned ones
            took, if that is longer.
        slow_factor: how many times as long as the best of its group a program may take before it is stopped.
        fair_s: seconds that it runs at least before that: all runs of a short one may meet with the same disturbance.
        limit_s: seconds that all runs of one program together may take, and one alone before it counts as stalled.
        close: where candidates are compared, how far behind the best of its group one may lie to have more runs than
            planned, as a part of its time; None if they are not compared.
        end_s: when nothing runs any more, by `time.monotonic`; what has run twice by then has a time.
    """

    num_warmups: int
    num_runs: int
    slow_factor: float
    limit_s: float
    max_runs: int = 0
    extra_s: float = 0.3
    fair_s: float = 0.0
    close: float | None = None
    end_s: float = math.inf


def run_rounds(
    timed_programs: Mapping[int, TimedProgram],
    *,
    groups: Mapping[int, Hashable],
    best: BestTimes,
    budget: RunBudget,
    watch: WatchedRun,
    on_error: Callable[[int, Exception], None],
    on_round: Callable[[int, int], None] = lambda done, most: None,
) -> None:
    """Runs all of them; their times are in them afterwards.

    Args:
        on_error: called with what fails.
        on_round: called with the number of a round before it begins, and of how many there may be.
    """
    active = dict(timed_programs)

    def run_one(number: int, timed: TimedProgram) -> None:
        try:
            if time.monotonic() >= budget.end_s:
                timed.series.was_stopped_early = True
                del active[number]
                if len(timed.times_s) < 2:
                    on_error(number, OutOfTimeError())
                return
            timed.times_s.append(watch.run(timed.run, limit_s=budget.limit_s))
        except Exception as error:  # One candidate's trouble; the others go on.
            on_error(number, error)
            del active[number]
            return
        if len(timed.times_s) > 1:
            best.note(groups[number], timed.warm_s)
        if _is_hopeless(timed, best[groups[number]], budget):
            timed.series.was_stopped_early = True
            del active[number]

    planned = budget.num_warmups + budget.num_runs
    most = budget.num_warmups + max(budget.num_runs, budget.max_runs)
    for round_ in range(most):
        if budget.close is not None and round_ >= planned and (round_ - planned) % _RUNS_BETWEEN == 0:
            for number in _far_behind(active, groups, budget):
                del active[number]
        if round_ >= planned and _is_enough(active, groups, budget):
            return
        on_round(round_ + 1, most)
        order = list(active.items())
        if round_ > 0:  # In another order each time: what follows on a large program finds the caches full of it.
            random.Random(round_).shuffle(order)
        for number, timed in order:
            run_one(number, timed)


def _is_enough(active: Mapping[int, TimedProgram], groups: Mapping[int, Hashable], budget: RunBudget) -> bool:
    """Returns whether the times of each can be trusted, or more runs would take too long."""
    planned = budget.num_warmups + budget.num_runs
    times_s = [timed.times_s for timed in active.values()]
    spent_s = sum(sum(runs[planned:]) for runs in times_s)
    # Ten runs of a long program are no better than ten of a short one: as much again as was planned is never too long.
    allowed_s = max(budget.extra_s * len(active), sum(sum(runs[:planned]) for runs in times_s))
    if spent_s > allowed_s:
        return True
    if budget.close is not None:
        return len({groups[number] for number in active}) == len(active)
    return all(_is_confirmed(runs[budget.num_warmups :]) for runs in times_s)


def _far_behind(active: Mapping[int, TimedProgram], groups: Mapping[int, Hashable], budget: RunBudget) -> list[int]:
    """Returns the programs that are not close to the best of their group."""
    assert budget.close is not None
    found = []
    for group in {groups[number] for number in active}:
        numbers = [number for number in active if groups[number] == group]
        times_s = paired_times([active[number].times_s[budget.num_warmups :] for number in numbers])
        bound_s = (1 + budget.close) * min(times_s)
        found += [number for number, time_s in zip(numbers, times_s, strict=True) if time_s > bound_s]
    return found


def _is_confirmed(times_s: Sequence[float]) -> bool:
    nearest = sorted(times_s)[:_NUM_ALIKE]
    return len(nearest) == _NUM_ALIKE and nearest[-1] <= nearest[0] * (1 + _ALIKE)


def _is_hopeless(timed: TimedProgram, best_s: float, budget: RunBudget) -> bool:
    num_left = budget.num_warmups + budget.num_runs - len(timed.times_s)
    spent_s = sum(timed.times_s)
    is_tried = len(timed.times_s) >= _FEWEST_RUNS and spent_s >= budget.fair_s
    is_slow = is_tried and timed.warm_s > budget.slow_factor * best_s
    return num_left > 0 and (is_slow or spent_s > budget.limit_s)


def spread_of(times_s: Sequence[float]) -> float | None:
    """Returns how far the upper quartile lies above the minimum, as a part of it; None for fewer than four times."""
    if len(times_s) < 4:
        return None
    ordered = sorted(times_s)
    return ordered[(3 * len(ordered)) // 4] / ordered[0] - 1
