"""Runs plans whole on a mesh, in turns, beside what their parts predict."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jax.sharding import Mesh

from jaxquard.cli.shard_step import NamedStep
from jaxquard.intraop.plan.sharding_plan import ShardingPlan
from jaxquard.intraop.shardings.baselines import CandidatePlan, baselines
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.pricing import Failure, MeasuredPricer, OnProgress, Price

PLAN = "this one"


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """A plan run whole.

    Attributes:
        predicted_s: by the search; None if it did not price the plan.
        price: as measured; None if it was set aside.
        failure: why it was.
    """

    name: str
    predicted_s: float | None
    price: Price | None = None
    failure: Failure | None = None

    @property
    def error(self) -> float | None:
        """How far the prediction is off, as a part of what was measured."""
        if self.predicted_s is None or self.price is None:
            return None
        return self.predicted_s / self.price.time_s - 1


def run_whole(step: NamedStep, plan: ShardingPlan, *, mesh: Mesh, on_progress: OnProgress) -> list[WholeRun]:
    """Runs the plan and the baselines; the plan comes first.

    All stand in one round, so that what disturbs the machine disturbs all alike, and nothing comes from a cache.

    Raises:
        ShardingError: if the plan is not for this step.
    """
    analysis = plan.analyse(trace_step(step.train_step, step.args))
    chosen = CandidatePlan(name=PLAN, assignment=plan.assignment, storage=plan.storage)
    plans: Sequence[CandidatePlan] = [chosen, *baselines(analysis).values()]
    written = StepPrograms(analysis)
    programs = [replace(write_whole_step(written, one.assignment, storage=one.storage), name=one.name) for one in plans]
    with MeasuredPricer(mesh, cache=None) as pricer:
        results = pricer.compare(programs, on_progress=on_progress)
    predicted_s = {PLAN: plan.time_s, **{baseline.name: baseline.time_s for baseline in plan.baselines}}
    return [_run(one.name, predicted_s.get(one.name), result) for one, result in zip(plans, results, strict=True)]


def _run(name: str, predicted_s: float | None, result: Price | Failure) -> WholeRun:
    known_s = None if predicted_s == float("inf") else predicted_s
    if isinstance(result, Failure):
        return WholeRun(name=name, predicted_s=known_s, failure=result)
    return WholeRun(name=name, predicted_s=known_s, price=result)
