"""Runs plans whole: all coarsely; then the best ten, the chosen one and the baselines in turns; some profiled."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from jaxquard.errors import ShardingError
from jaxquard.evaluate.cfp.cells.cell import PlanRun, Role
from jaxquard.evaluate.cfp.cells.pick import NUM_BY_VOLUME
from jaxquard.evaluate.cfp.run.sum_price import SumPricer
from jaxquard.evaluate.cfp.run.whole_steps import COARSE, COARSE_ROUND, FINE, Timing, WholeSteps
from jaxquard.intraop.plan.search_plans import PlanSearch
from jaxquard.intraop.plan.segment_prices import StepPrices
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.shardings.baselines import CandidatePlan
from jaxquard.intraop.shardings.volume import volume_problem


def volumes(analysis: Analysis, assignments: Sequence[Mapping[int, Sequence[str]]]) -> list[float]:
    """Returns the volume of each assignment; communication is found once for all."""
    choices = [
        list(dict.fromkeys(tuple(assignment[block.number]) for assignment in assignments)) for block in analysis.blocks
    ]
    problem = volume_problem(analysis, choices)
    found = []
    for assignment in assignments:
        places = [names.index(tuple(assignment[number])) for number, names in enumerate(choices)]
        size_bytes = sum(float(costs[place]) for costs, place in zip(problem.costs, places, strict=True))
        size_bytes += sum(float(costs[places[a], places[b]]) for (a, b), costs in problem.edges.items())
        found.append(size_bytes)
    return found


# The part of the work, how many of its programs are done, of how many, and the name of one.
OnPart = Callable[[str, int, int, str], None]
_NUM_FINE = 10


def run_plans(
    analysis: Analysis,
    prices: StepPrices,
    found: PlanSearch | ShardingError,
    plans: Sequence[CandidatePlan],
    *,
    steps: WholeSteps,
    limit_bytes: int | None,
    on_part: OnPart,
) -> list[PlanRun]:
    """Runs compiled plans.

    Args:
        found: what the search found; or why nothing fits, and then the plans are baselines.
        steps: the plans, compiled.
        limit_bytes: what takes more is not among the best.
    """
    chosen = None if isinstance(found, ShardingError) else found.plans[found.chosen].name
    runs = _predicted_runs(analysis, prices, found, plans)
    always = [run.name for run in runs if run.role is Role.BASELINE or run.name == chosen]
    coarse: dict[str, Timing] = {}
    if len(always) < len(runs):
        coarse = steps.time(
            [run.name for run in runs], COARSE, round_size=COARSE_ROUND, on_step=partial(on_part, "all")
        )
    limit = limit_bytes or float("inf")
    fitting = [name for name in coarse if coarse[name].time_s is not None and (steps[name].peak_bytes or 0) <= limit]
    best = sorted(fitting, key=lambda name: coarse[name].minimum_s or 0.0)[:_NUM_FINE]
    last = steps.same_as(list(dict.fromkeys([*always, *best])))
    fine = steps.time(last, FINE, round_size=None, on_step=partial(on_part, "the best in turns"))
    strategies = [run for run in runs if run.role is Role.STRATEGY and run.name in coarse]
    by_volume = sorted(strategies, key=lambda run: run.volume_bytes)[:NUM_BY_VOLUME]
    profiled = list(dict.fromkeys([*always, *(run.name for run in by_volume)]))
    shares = steps.shares(profiled, on_step=partial(on_part, "profiling"))
    measured = _measured_runs(runs, steps, coarse, fine)
    measured = [
        replace(run, compiled_bytes=steps[run.name].sent_bytes) if run.name in profiled else run for run in measured
    ]
    return [_with_split(run, shares.get(run.name)) for run in measured]


def _measured_runs(
    runs: Sequence[PlanRun], steps: WholeSteps, coarse: Mapping[str, Timing], fine: Mapping[str, Timing]
) -> list[PlanRun]:
    pace = _drift(coarse, fine)
    found = []
    for run in runs:
        few, many = coarse.get(run.name, Timing()), fine.get(run.name, Timing())
        found.append(
            replace(
                run,
                peak_bytes=steps[run.name].peak_bytes,
                coarse_s=None if few.minimum_s is None else pace * few.minimum_s,
                measured_s=many.time_s,
                minimum_s=many.minimum_s,
                spread=many.spread,
                error=many.error,
                failure=(fine.get(run.name) or coarse[run.name]).failure,
            )
        )
    return found


def _drift(coarse: Mapping[str, Timing], fine: Mapping[str, Timing]) -> float:
    """Returns how much longer runs took when many were made than when few were, in most plans that have both."""
    pairs = [(coarse[name].minimum_s, timing.time_s) for name, timing in fine.items() if name in coarse]
    ratios = [many_s / few_s for few_s, many_s in pairs if few_s is not None and many_s is not None]
    return statistics.median(ratios) if ratios else 1.0


def _with_split(run: PlanRun, share: float | None) -> PlanRun:
    """The time of a run, parted into computation and the communication that is not hidden behind it."""
    if share is None or run.time_s is None:
        return run
    return replace(run, compute_s=(1 - share) * run.time_s, communication_s=share * run.time_s)


def _predicted_runs(
    analysis: Analysis, prices: StepPrices, found: PlanSearch | ShardingError, plans: Sequence[CandidatePlan]
) -> list[PlanRun]:
    """Returns runs of plans with what is known before they run whole."""
    predictions = {} if isinstance(found, ShardingError) else {one.name: one for one in found.predictions}
    roles = _roles(found, plans)
    summed = SumPricer(analysis, prices)
    runs = []
    for plan, size_bytes in zip(plans, volumes(analysis, [plan.assignment for plan in plans]), strict=True):
        run = PlanRun(
            name=plan.name,
            role=roles.get(plan.name, Role.STRATEGY),
            choices=tuple(tuple(plan.assignment[block.number]) for block in analysis.blocks),
            storage=plan.storage.value,
            volume_bytes=size_bytes,
        )
        prediction = predictions.get(plan.name)
        alone = summed.price(plan.assignment) if prediction is None else None
        if prediction is not None:
            run = replace(
                run,
                predicted_s=_finite(prediction.time_s),
                sum_s=_finite(prediction.sum_s),
                predicted_bytes=prediction.size_bytes,
            )
        elif alone is not None and run.role is Role.STRATEGY:
            run = replace(run, sum_s=_finite(alone.time_s), predicted_bytes=alone.size_bytes)
        runs.append(run)
    return runs


def _roles(found: PlanSearch | ShardingError, plans: Sequence[CandidatePlan]) -> Mapping[str, Role]:
    """Returns the roles of finalists and baselines; all others are strategies."""
    if isinstance(found, ShardingError):
        return {plan.name: Role.BASELINE for plan in plans}
    finalists = {plan.name: Role.FINALIST for plan in found.finalists}
    return finalists | {plan.name: Role.BASELINE for plan in found.baselines}


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value
