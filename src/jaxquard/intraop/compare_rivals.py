"""Prices the closest rivals once more, together: which of them is best, single prices are too rough to tell.

Plans that were priced whole at different times met with different disturbances; of many that are nearly as fast, the
one that seems fastest is often just the luckiest.
"""

from collections.abc import Sequence
from dataclasses import replace

from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.baselines import Baseline
from jaxquard.intraop.predict import MOST_PRICED_WHOLE, Prediction, write_part
from jaxquard.pricing import OnProgress, Price, Pricer

# Plans that take at most so many times as long as the fastest, and so many of them.
_CLOSE = 1.25
_MOST_RIVALS = 6


def compare_rivals(
    analysis: Analysis,
    plans: Sequence[Baseline],
    predictions: Sequence[Prediction],
    *,
    memory_limit_bytes: int | None,
    pricer: Pricer,
    on_progress: OnProgress | None = None,
) -> list[Prediction]:
    """The predictions, with new times of the closest rivals; of a step that is too deep to price whole, as they are."""
    limit = float("inf") if memory_limit_bytes is None else memory_limit_bytes
    fitting = [place for place, found in enumerate(predictions) if found.size_bytes <= limit]
    best_s = min((predictions[place].time_s for place in fitting), default=float("inf"))
    close = [place for place in fitting if predictions[place].time_s <= _CLOSE * best_s < float("inf")]
    rivals = sorted(close, key=lambda place: predictions[place].time_s)[:_MOST_RIVALS]
    compared = list(predictions)
    if len(rivals) < 2 or len(analysis.segments) > MOST_PRICED_WHOLE:
        return compared
    programs = [write_part(analysis, analysis.segments, plans[place]) for place in rivals]
    for place, price in zip(rivals, pricer.compare(programs, on_progress=on_progress), strict=True):
        if isinstance(price, Price):
            compared[place] = replace(compared[place], time_s=price.time_s)
    return compared
