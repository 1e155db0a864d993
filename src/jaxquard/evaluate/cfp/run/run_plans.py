"""Plans of a cell with what is predicted of them, then with what their whole steps take."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxquard.errors import ShardingError
from jaxquard.evaluate.cfp.cells.cell import PlanRun, Role
from jaxquard.evaluate.cfp.run.backend import OnPart, WholeRuns
from jaxquard.evaluate.cfp.run.sum_price import SumPricer
from jaxquard.intraop.plan.search_plans import PlanSearch
from jaxquard.intraop.plan.segment_prices import StepPrices
from jaxquard.intraop.plan.volume import volumes_bytes
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.shardings.baselines import CandidatePlan


def run_plans(
    analysis: Analysis,
    prices: StepPrices,
    found: PlanSearch | ShardingError,
    plans: Sequence[CandidatePlan],
    *,
    whole: WholeRuns,
    limit_bytes: int | None,
    on_part: OnPart,
) -> list[PlanRun]:
    """Runs compiled plans, or prices them whole.

    Args:
        found: what the search found; or why nothing fits, and then the plans are baselines.
        whole: the plans, compiled.
        limit_bytes: what takes more is not among the best.
    """
    chosen = None if isinstance(found, ShardingError) else found.plans[found.chosen].name
    runs = _predicted_runs(analysis, prices, found, plans)
    return whole.run(runs, chosen=chosen, limit_bytes=limit_bytes, on_part=on_part)


def _predicted_runs(
    analysis: Analysis, prices: StepPrices, found: PlanSearch | ShardingError, plans: Sequence[CandidatePlan]
) -> list[PlanRun]:
    """Returns runs of plans with what is known before they run whole."""
    predictions = {} if isinstance(found, ShardingError) else {one.name: one for one in found.predictions}
    roles = _roles(found, plans)
    summed = SumPricer(analysis, prices)
    runs = []
    for plan, size_bytes in zip(
        plans, volumes_bytes(prices.programs, [plan.assignment for plan in plans]), strict=True
    ):
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
