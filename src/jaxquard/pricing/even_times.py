"""What close rivals take, told by their ratios in runs side by side.

The least of many runs is a lucky one, and who has it is chance. Seen on 2 cores with 7 plans of a GPT step of 110 to
120 ms in turns, 240 runs each: the order by the least of 40 runs has a standard deviation of 4.2 % of a plan's time
(4.4 % with 80), so that the best of ten seems 6 % better than it is. But what disturbs a machine lasts longer than a
run, and hits all that stand side by side. The median over runs of a plan's time, relative to the median of its
neighbours in the same round, has a standard deviation of 1.5 % after 40 runs and 1.1 % after 80.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxquard.pricing.contender import Contender

# Of fewer runs, the quartiles tell nothing.
_FEWEST = 4
_FEWEST_PROGRAMS = 3


def even_times(times_s: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each program: in the mean as much as their least runs, in the ratios that most rounds show.

    Args:
        times_s: for each program its runs, one at least; those with the same place were side by side. Where some have
            fewer, all are compared with those that have most, and these give the level.
    """
    if len(times_s) == 0:
        return []
    whole, beside = _beside_neighbours(times_s)
    offsets = [np.median(runs) for runs in beside]
    longest = [offset for offset, runs in zip(offsets, beside, strict=True) if len(runs) == whole.shape[1]]
    level = whole.min(axis=1).mean() - np.mean(longest)
    return [float(np.exp(level + offset)) for offset in offsets]


def even_errors(times_s: Sequence[Sequence[float]]) -> list[float | None]:
    """How far the times of `even_times` may be off against one another: the standard error, as a part of each.

    None for fewer than four runs, or fewer than three programs: there are no neighbours to tell by.
    """
    if len(times_s) == 0:
        return []
    whole, beside = _beside_neighbours(times_s)
    if len(whole) < _FEWEST_PROGRAMS:
        return [None] * len(beside)
    return [_median_error(runs) if len(runs) >= _FEWEST else None for runs in beside]


def _beside_neighbours(times_s: Sequence[Sequence[float]]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The logarithms of those with most runs, and of all runs relative to the median of these in the same round."""
    logs = [np.log(np.asarray(runs)) for runs in times_s]
    whole = np.array([runs for runs in logs if len(runs) == max(map(len, logs))])
    neighbours = np.median(whole, axis=0)
    return whole, [runs - neighbours[: len(runs)] for runs in logs]


def _median_error(values: np.ndarray) -> float:
    """The standard error of the median, by the half of the values around it, as if they were normal."""
    low, high = np.quantile(values, [0.25, 0.75])
    return float(np.sqrt(np.pi / 2) * (high - low) / 1.349 / np.sqrt(len(values)))


def even_race(contenders: Mapping[int, Contender], *, num_warmups: int) -> dict[int, float]:
    """Seconds of each after a race; of one that was stopped while it warmed up, its least run."""
    found = {place: contender.least_s(num_warmups) for place, contender in contenders.items()}
    counted = {place: contender.times_s[num_warmups:] for place, contender in contenders.items()}
    known = {place: times_s for place, times_s in counted.items() if times_s}
    found.update(zip(known, even_times(list(known.values())), strict=True))
    return found
