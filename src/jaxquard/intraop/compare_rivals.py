"""Prices the closest rivals once more, together: which of them is best, single prices are too rough to tell.

Plans that were priced whole at different times met with different disturbances; of many that are nearly as fast, the
one that seems fastest is often just the luckiest.
"""

import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.baselines import Baseline
from jaxquard.intraop.predict import MOST_PRICED_WHOLE, Prediction, write_part
from jaxquard.pricing import OnProgress, Price, Pricer

# Plans that take at most so many times as long as the fastest, and so many different ones of them.
_CLOSE = 1.25
_MOST_RIVALS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All predictions, those of rivals with new times, and the others at the pace of these.

    Attributes:
        rivals: the places of plans with new times. They alone can be compared: the others' are of another moment, at
            which the machine may have been faster, even if they are multiplied by as much as rivals changed in the
            middle. None if nothing was compared.
    """

    predictions: tuple[Prediction, ...]
    rivals: tuple[int, ...] = field(default=())


def compare_rivals(
    analysis: Analysis,
    plans: Sequence[Baseline],
    predictions: Sequence[Prediction],
    *,
    memory_limit_bytes: int | None,
    pricer: Pricer,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Prices the closest rivals again; not for a step that is too deep to price whole."""
    limit = float("inf") if memory_limit_bytes is None else memory_limit_bytes
    fitting = [place for place, found in enumerate(predictions) if found.size_bytes <= limit]
    best_s = min((predictions[place].time_s for place in fitting), default=float("inf"))
    close = [place for place in fitting if predictions[place].time_s <= _CLOSE * best_s < float("inf")]
    equal: dict[Hashable, list[int]] = {}
    for place in sorted(close, key=lambda place: predictions[place].time_s):
        equal.setdefault(_key(analysis, plans[place]), []).append(place)
    rivals = list(equal.values())[:_MOST_RIVALS]
    if len(rivals) < 2 or len(analysis.segments) > MOST_PRICED_WHOLE:
        return Comparison(predictions=tuple(predictions))
    programs = [write_part(analysis, analysis.segments, plans[places[0]]) for places in rivals]
    found = pricer.compare(programs, on_progress=on_progress)
    new_s = {
        place: price.time_s if isinstance(price, Price) else float("inf")
        for places, price in zip(rivals, found, strict=True)
        for place in places
    }
    pace = _pace([(predictions[places[0]].time_s, new_s[places[0]]) for places in rivals])
    compared = [replace(one, time_s=new_s.get(place, pace * one.time_s)) for place, one in enumerate(predictions)]
    return Comparison(predictions=tuple(compared), rivals=tuple(sorted(new_s)))


def _pace(times_s: Sequence[tuple[float, float]]) -> float:
    """By how much times have changed, before and after, in the middle of those that ran; 1 if none did."""
    changes = [after_s / before_s for before_s, after_s in times_s if after_s != float("inf")]
    return statistics.median(changes) if changes else 1.0


def _key(analysis: Analysis, plan: Baseline) -> Hashable:
    """The same for plans that are the same by other names."""
    return tuple(tuple(plan.assignment[block.number]) for block in analysis.blocks), plan.storage
