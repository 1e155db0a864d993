"""Prices the closest rivals once more, together: which of them is best, single prices are too rough to tell.

Plans that were priced at different times met with different disturbances; of many that are nearly as fast, the one that
seems fastest is often just the luckiest. Of a step that is too deep to be priced whole, the segments and pairs of
neighbours of all rivals run side by side. Baselines take part however slow they are, as they are shown beside
the plan: what is far behind is soon stopped.
"""

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.baselines import Baseline
from jaxquard.intraop.predict import MOST_PRICED_WHOLE, Prediction, compare_all
from jaxquard.pricing import OnProgress, Pricer

# Plans that take at most so many times as long as the fastest, and so many different ones of them.
_CLOSE = 1.25
_MOST_RIVALS = 8
# Of deep steps fewer, as each has several programs; and others than the closest too, as the first prices are rougher.
_CLOSE_DEEP = 1.5
_MOST_DEEP_RIVALS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All predictions, those of rivals with new times.

    Attributes:
        rivals: the places of plans with new times. They alone can be compared: the others' are of another moment, at
            which the machine may have been faster. None if nothing was compared.
    """

    predictions: tuple[Prediction, ...]
    rivals: tuple[int, ...] = field(default=())


def compare_rivals(
    analysis: Analysis,
    plans: Sequence[Baseline],
    predictions: Sequence[Prediction],
    *,
    num_finalists: int,
    memory_limit_bytes: int | None,
    pricer: Pricer,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Prices the closest rivals again, and the baselines.

    Args:
        num_finalists: so many plans are of the search, and stand before the baselines.
    """
    limit = float("inf") if memory_limit_bytes is None else memory_limit_bytes
    running = [place for place, found in enumerate(predictions) if found.time_s != float("inf")]
    fitting = [place for place in running if predictions[place].size_bytes <= limit]
    best_s = min((predictions[place].time_s for place in fitting), default=0.0)
    is_deep = len(analysis.segments) > MOST_PRICED_WHOLE
    factor, most = (_CLOSE_DEEP, _MOST_DEEP_RIVALS) if is_deep else (_CLOSE, _MOST_RIVALS)
    close = [place for place in fitting if predictions[place].time_s <= factor * best_s]
    nearest = _equal(analysis, plans, sorted(close, key=lambda place: predictions[place].time_s))[:most]
    others = [place for place in running if place >= num_finalists] if nearest else []
    rivals = _equal(analysis, plans, [*itertools.chain(*nearest), *others])
    if len(rivals) < 2:
        return Comparison(predictions=tuple(predictions))
    firsts = [plans[places[0]] for places in rivals]
    compared = list(predictions)
    times_s = compare_all(analysis, firsts, pricer=pricer, on_progress=on_progress)
    for places, time_s in zip(rivals, times_s, strict=True):
        for place in places:
            compared[place] = replace(compared[place], time_s=time_s)
    return Comparison(predictions=tuple(compared), rivals=tuple(sorted(itertools.chain(*rivals))))


def _equal(analysis: Analysis, plans: Sequence[Baseline], places: Sequence[int]) -> list[list[int]]:
    """The places, in their order, those together whose plans are the same."""
    equal: dict[Hashable, list[int]] = {}
    for place in dict.fromkeys(places):
        equal.setdefault(_key(analysis, plans[place]), []).append(place)
    return list(equal.values())


def _key(analysis: Analysis, plan: Baseline) -> Hashable:
    """The same for plans that are the same by other names."""
    return tuple(tuple(plan.assignment[block.number]) for block in analysis.blocks), plan.storage
