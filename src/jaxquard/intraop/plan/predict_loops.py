"""Predicts plans by running them: what a prediction is, and what a user sees.

The time of a plan is the median over steps of a training loop, each with a batch that comes from the host. Times of
segments, pairs and whole steps in turns (`predict`, `finalists`) find which plans are worth running; the minimum of
runs in turns was 0.73 to 0.84 of what a loop takes. So the fastest plans and the two best baselines run as loops in the
end, as long as a time budget lasts. Times of plans that did not run are multiplied by the ratio that those that ran
show.

Of a step that is too deep to be priced whole, whole programs are compiled here for the first time. What the compiler
makes of a reshard between layers may differ from the sum of pairs: a plan of 33 ms was predicted at 24.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from jaxquard.intraop.plan.finalists import Remeasured, group_equal
from jaxquard.intraop.plan.predict import Prediction, write_plan
from jaxquard.intraop.plan.segment_prices import StepPrices
from jaxquard.intraop.shardings.baselines import CandidatePlan
from jaxquard.pricing import Failure, FailureReason, LoopPricer, OnProgress, Price

_MOST_FINALISTS = 4
_MOST_BASELINES = 2
_CLOSE = 1.5


def predict_loops(
    prices: StepPrices,
    plans: Sequence[CandidatePlan],
    compared: Remeasured,
    *,
    num_finalists: int,
    memory_limit_bytes: int | None,
    pricer: LoopPricer,
    budget_s: float,
    on_progress: OnProgress | None = None,
) -> tuple[Remeasured, list[Failure]]:
    """Runs the fastest plans as training loops; returns all predictions, which of them ran, and what failed.

    Args:
        num_finalists: the number of plans that are the search's; they stand before the baselines.
        budget_s: see `LoopPricer`.
    """
    chosen = _to_run(plans, compared, num_finalists, memory_limit_bytes)
    if not chosen:
        return compared, []
    programs = [write_plan(prices.programs, plans[places[0]]) for places in chosen]
    found = pricer.price_loops(programs, budget_s=budget_s, on_progress=on_progress)
    ran = [(places, price) for places, price in zip(chosen, found, strict=True) if isinstance(price, Price)]
    failures = [one for one in found if isinstance(one, Failure) and one.reason is not FailureReason.NO_TIME]
    if not ran:
        return compared, failures
    return _with_loop_times(compared, ran), failures


def _to_run(
    plans: Sequence[CandidatePlan], compared: Remeasured, num_finalists: int, memory_limit_bytes: int | None
) -> list[list[int]]:
    """Returns the places of plans to run, equal ones together: the fastest one, the best baseline, then the others."""
    predictions = compared.predictions
    limit = math.inf if memory_limit_bytes is None else memory_limit_bytes
    among = compared.remeasured or range(len(plans))
    fitting = [place for place in among if predictions[place].size_bytes <= limit and _runs(predictions[place])]
    ordered = sorted(fitting, key=lambda place: predictions[place].time_s)
    if not ordered:
        return []
    close_s = _CLOSE * predictions[ordered[0]].time_s
    ours = [place for place in ordered if place < num_finalists and predictions[place].time_s <= close_s]
    baselines = [place for place in ordered if place >= num_finalists]
    groups = group_equal(plans, ordered)
    first = {place: number for number, group in enumerate(groups) for place in group}
    finalists = list(dict.fromkeys(first[place] for place in ours))[:_MOST_FINALISTS]
    others = list(dict.fromkeys(first[place] for place in baselines))[:_MOST_BASELINES]
    wanted = dict.fromkeys([*finalists[:1], *others[:1], *finalists[1:], *others[1:]])
    return [groups[number] for number in wanted]


def _runs(prediction: Prediction) -> bool:
    return math.isfinite(prediction.time_s)


def _with_loop_times(compared: Remeasured, ran: Sequence[tuple[list[int], Price]]) -> Remeasured:
    ratio = statistics.median(price.time_s / compared.predictions[places[0]].time_s for places, price in ran)
    predictions = [replace(one, time_s=ratio * one.time_s) for one in compared.predictions]
    for places, price in ran:
        for place in places:
            predictions[place] = replace(
                predictions[place], time_s=price.time_s, size_bytes=price.peak_bytes, is_modelled=False
            )
    looped = tuple(sorted(place for places, _ in ran for place in places))
    return Remeasured(predictions=tuple(predictions), remeasured=looped)
