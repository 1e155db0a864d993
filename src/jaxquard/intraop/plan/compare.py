"""Compares the closest plans side by side, and runs the fastest as training loops, before one is chosen.

Prices that were measured at different times met different disturbances: of many plans that are nearly as fast, the one
that seems fastest is often just the luckiest. So the closest finalists are measured once more, side by side
(`compare_plans`); of a step that is too deep to be priced whole, all their segments and pairs of neighbours. Baselines
take part however slow they are, as they are shown beside the plan: a program far behind is soon stopped.

What a user sees is a training loop, each step with a batch that comes from the host; the minimum of runs in turns was
0.73 to 0.84 of what a loop takes. So the fastest plans and the two best baselines run as loops in the end
(`run_loops`), as long as a time budget lasts. Times of plans that did not run are multiplied by the ratio that those
that ran show. Of a step that is too deep to be priced whole, whole programs are compiled here for the first time. What
the compiler makes of a reshard between layers may differ from the sum of pairs: a plan of 33 ms was predicted at 24.
"""

import itertools
import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import replace

from jaxquard.intraop.plan.predict import MOST_PRICED_WHOLE, Prediction, compare_all, write_plan
from jaxquard.intraop.plan.segment_prices import StepPrices
from jaxquard.intraop.shardings.baselines import CandidatePlan
from jaxquard.pricing import Failure, LoopPricer, OnProgress, Pricer

# Compared are plans that take at most so many times as long as the fastest, and so many different ones.
_CLOSE = 1.25
_MOST_COMPARED = 8
# Of deep steps fewer, as each has several programs; and slower ones too, as the first prices are rougher.
_CLOSE_DEEP = 1.5
_MOST_DEEP_COMPARED = 4
# The same for training loops.
_CLOSE_LOOPS = 1.5
_MOST_LOOPS = 4
_MOST_BASELINE_LOOPS = 2


def compare_plans(
    prices: StepPrices,
    plans: Sequence[CandidatePlan],
    predictions: Sequence[Prediction],
    *,
    num_finalists: int,
    memory_limit_bytes: int | None,
    pricer: Pricer,
    on_progress: OnProgress | None = None,
) -> list[Prediction]:
    """Prices the closest plans and the baselines again, side by side; returns all predictions.

    Args:
        num_finalists: the number of plans that are the search's; they stand before the baselines.
    """
    is_deep = len(prices.analysis.segments) > MOST_PRICED_WHOLE
    close, most = (_CLOSE_DEEP, _MOST_DEEP_COMPARED) if is_deep else (_CLOSE, _MOST_COMPARED)
    nearest = _group_equal(plans, _fastest_places(predictions, memory_limit_bytes, within=close))[:most]
    baselines = [place for place in range(num_finalists, len(plans)) if nearest and predictions[place].fits(None)]
    groups = _group_equal(plans, [*itertools.chain(*nearest), *baselines])
    compared = list(predictions)
    if len(groups) > 1:
        firsts = [plans[places[0]] for places in groups]
        found = compare_all(prices, firsts, pricer=pricer, on_progress=on_progress)
        for places, (time_s, failures) in zip(groups, found, strict=True):
            for place in places:
                known = (*compared[place].failures, *failures)
                compared[place] = replace(compared[place], time_s=time_s, failures=known, num_rounds=1)
    return compared


def run_loops(
    prices: StepPrices,
    plans: Sequence[CandidatePlan],
    predictions: Sequence[Prediction],
    *,
    num_finalists: int,
    memory_limit_bytes: int | None,
    pricer: LoopPricer,
    budget_s: float,
    on_progress: OnProgress | None = None,
) -> list[Prediction]:
    """Runs the fastest plans as training loops; returns all predictions.

    Args:
        num_finalists: the number of plans that are the search's; they stand before the baselines.
        budget_s: see `LoopPricer`.
    """
    groups = _loops(plans, predictions, num_finalists, memory_limit_bytes)
    if not groups:
        return list(predictions)
    programs = [write_plan(prices.programs, plans[places[0]]) for places in groups]
    found = list(zip(groups, pricer.price_loops(programs, budget_s=budget_s, on_progress=on_progress), strict=True))
    ratios = [one.time_s / predictions[at[0]].time_s for at, one in found if not isinstance(one, Failure)]
    ratio = statistics.median(ratios) if ratios else 1.0
    looped = [replace(one, time_s=ratio * one.time_s) for one in predictions]
    for place, price in ((place, one) for places, one in found for place in places):
        if isinstance(price, Failure):
            looped[place] = replace(looped[place], failures=(*looped[place].failures, price))
        else:
            looped[place] = replace(
                looped[place], time_s=price.time_s, size_bytes=price.peak_bytes, is_modelled=False, num_rounds=2
            )
    return looped


def _loops(
    plans: Sequence[CandidatePlan],
    predictions: Sequence[Prediction],
    num_finalists: int,
    memory_limit_bytes: int | None,
) -> list[tuple[int, ...]]:
    """Returns the places of plans to run, equal ones together: the fastest one, the best baseline, then the others."""
    close = set(_fastest_places(predictions, memory_limit_bytes, within=_CLOSE_LOOPS))
    groups = _group_equal(plans, _fastest_places(predictions, memory_limit_bytes))
    ours = [places for places in groups if any(place < num_finalists and place in close for place in places)]
    others = [places for places in groups if max(places) >= num_finalists][:_MOST_BASELINE_LOOPS]
    return list(dict.fromkeys([*ours[:1], *others[:1], *ours[1:_MOST_LOOPS], *others[1:]]))


def _fastest_places(
    predictions: Sequence[Prediction], memory_limit_bytes: int | None, *, within: float = math.inf
) -> list[int]:
    """Returns the places of plans that fit, the fastest first; of plans that were compared, those alone.

    Args:
        within: of the time of the fastest, how much the others may take.
    """
    fitting = [place for place, one in enumerate(predictions) if one.fits(memory_limit_bytes)]
    most = max((predictions[place].num_rounds for place in fitting), default=0)
    latest = [place for place in fitting if predictions[place].num_rounds == most]
    ordered = sorted(latest, key=lambda place: predictions[place].time_s)
    return [place for place in ordered if predictions[place].time_s <= within * predictions[ordered[0]].time_s]


def _group_equal(plans: Sequence[CandidatePlan], places: Sequence[int]) -> list[tuple[int, ...]]:
    """Groups places whose plans are the same by other names, in their order."""
    equal: dict[Hashable, list[int]] = {}
    for place in dict.fromkeys(places):
        equal.setdefault(plans[place].key, []).append(place)
    return list(map(tuple, equal.values()))
