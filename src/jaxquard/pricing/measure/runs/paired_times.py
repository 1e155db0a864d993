"""Paired comparison of near-equal programs: their times from ratios of runs side by side.

The minimum of many runs is a lucky one, and who has it is chance. Seen on 2 cores with 7 plans of a GPT step of 110 to
120 ms in turns, 240 runs each: the order by the minimum of 40 runs has a standard deviation of 4.2 % of a plan's time
(4.4 % with 80), so that the best of ten seems 6 % better than it is. But what disturbs a machine lasts longer than a
run, and hits all that stand side by side: the median over rounds of what one takes, relative to the median of the same
round, deviates by 1.5 % after 40 runs and by 1.1 % after 80.

Here each is compared with each other, and its place is the mean of these medians. The median of a round is not enough
to compare with: of an odd number of programs it is one of them, and two that are it in turns come out as equal.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxquard.pricing.measure.runs.timed_program import TimedProgram

# Of fewer runs, the quartiles say nothing.
_FEWEST = 4
_FEWEST_PROGRAMS = 3


def paired_times(times_s: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each program: in the mean as much as their fastest runs, in the ratios that most rounds show.

    Args:
        times_s: for each program its runs, one at least; those with the same place were side by side. Where some have
            fewer, all are compared with those that have most, and these give the level.
    """
    if len(times_s) == 0:
        return []
    logs, whole = _logarithms(times_s)
    # Those with most runs have offsets that add up to nothing: of two, one's median is the other's, negated.
    offsets = [np.median(runs - whole[:, : len(runs)], axis=1).mean() for runs in logs]
    level = whole.min(axis=1).mean()
    return [float(np.exp(level + offset)) for offset in offsets]


def paired_errors(times_s: Sequence[Sequence[float]]) -> list[float | None]:
    """Returns the standard errors of `paired_times` against one another, each as a part of its time.

    None for fewer than four runs, or fewer than three programs: there are no neighbours to compare with.
    """
    if len(times_s) == 0:
        return []
    logs, whole = _logarithms(times_s)
    if len(whole) < _FEWEST_PROGRAMS:
        return [None] * len(logs)
    pace = whole.mean(axis=0)
    return [_median_error(runs - pace[: len(runs)]) if len(runs) >= _FEWEST else None for runs in logs]


def _logarithms(times_s: Sequence[Sequence[float]]) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns the logarithms of all runs, and of the programs that have most."""
    logs = [np.log(np.asarray(runs)) for runs in times_s]
    return logs, np.array([runs for runs in logs if len(runs) == max(map(len, logs))])


def _median_error(values: np.ndarray) -> float:
    """The standard error of the median, by the half of the values around it, as if they were normal."""
    low, high = np.quantile(values, [0.25, 0.75])
    return float(np.sqrt(np.pi / 2) * (high - low) / 1.349 / np.sqrt(len(values)))


def paired_program_times(timed_programs: Mapping[int, TimedProgram], *, num_warmups: int) -> dict[int, float]:
    """Seconds of each after the rounds; of one that was stopped while it warmed up, its fastest run."""
    found = {place: timed.minimum_s(num_warmups) for place, timed in timed_programs.items()}
    counted = {place: timed.times_s[num_warmups:] for place, timed in timed_programs.items()}
    known = {place: times_s for place, times_s in counted.items() if times_s}
    found.update(zip(known, paired_times(list(known.values())), strict=True))
    return found
