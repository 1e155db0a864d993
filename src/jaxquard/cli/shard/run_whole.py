"""Runs plans as whole steps on a mesh, beside what the search predicts; shows them as a table or as JSON."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from jaxquard.cli.console import print_line
from jaxquard.cli.shard.find_step import NamedStep
from jaxquard.intraop.plan.predict import write_plan
from jaxquard.intraop.plan.sharding_plan import ShardingPlan
from jaxquard.intraop.plan.volume import volume_baseline
from jaxquard.intraop.shardings.baselines import CandidatePlan, baselines
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.pricing import Failure, MeasuredPricer, OnProgress, Price

PLAN = "this one"
# On a quiet machine runs spread by a few percent; with so much, the order of the plans means little.
_BUSY_SPREAD = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """A plan run as a whole step.

    Attributes:
        predicted_s: by the search; None if it did not price the plan.
        price: as measured; None if it failed.
        failure: why it has no price.
    """

    name: str
    predicted_s: float | None
    price: Price | None = None
    failure: Failure | None = None

    @property
    def error(self) -> float | None:
        """The error of the prediction, as a part of what was measured."""
        if self.predicted_s is None or self.price is None:
            return None
        return self.predicted_s / self.price.time_s - 1


def run_whole(step: NamedStep, plan: ShardingPlan, *, mesh: Mesh, on_progress: OnProgress) -> list[WholeRun]:
    """Runs the plan and the baselines as training loops; the plan comes first.

    Each has short blocks of steps in turn, so that what disturbs the machine disturbs all alike. Nothing comes from a
    cache.

    Raises:
        ShardingError: if the plan is not for this step.
    """
    analysis = plan.analyse(trace_step(step.train_step, step.args))
    chosen = CandidatePlan(name=PLAN, assignment=plan.assignment, storage=plan.storage)
    written = StepPrograms(analysis)
    plans: Sequence[CandidatePlan] = [chosen, *baselines(analysis).values(), volume_baseline(written)]
    programs = [replace(write_plan(written, one), name=one.name) for one in plans]
    with MeasuredPricer(mesh, cache=None) as pricer:
        results = pricer.price_loops(programs, budget_s=math.inf, on_progress=on_progress)
    predicted_s = {PLAN: plan.time_s, **{baseline.name: baseline.time_s for baseline in plan.baselines}}
    return [_run(one.name, predicted_s.get(one.name), result) for one, result in zip(plans, results, strict=True)]


def _run(name: str, predicted_s: float | None, result: Price | Failure) -> WholeRun:
    known_s = None if predicted_s == float("inf") else predicted_s
    if isinstance(result, Failure):
        return WholeRun(name=name, predicted_s=known_s, failure=result)
    return WholeRun(name=name, predicted_s=known_s, price=result)


def print_runs(console: Console, runs: list[WholeRun], *, model: str, mesh: Mesh, limit_bytes: int | None) -> None:
    """Prints a table, the plan first; then what failed, and whether the machine was busy."""
    device = mesh.devices.flat[0].device_kind
    axes = " x ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    print_line(console, f"{model} over {axes} ({mesh.size} x {device}), training loops, in short blocks", style="bold")
    console.print(_table(runs, limit_bytes))
    for run in runs:
        if run.failure is not None:
            print_line(console, f"failed: {run.failure}")
    spread = max((run.price.spread or 0.0 for run in runs if run.price is not None), default=0.0)
    if spread > _BUSY_SPREAD:
        busy = f"the runs of one plan spread by {100 * spread:.0f} %: the machine was busy"
        print_line(console, f"{busy}. Repeat when nothing else runs.", style="yellow")


def run_content(run: WholeRun, limit_bytes: int | None) -> dict[str, Any]:
    """Returns a run for JSON."""
    price = run.price
    return {
        "name": run.name,
        "predicted_s": run.predicted_s,
        "measured_s": None if price is None else price.time_s,
        "spread": None if price is None else price.spread,
        "peak_bytes": None if price is None else price.peak_bytes,
        "fits": price is not None and _fits(price, limit_bytes),
        "failure": None if run.failure is None else str(run.failure),
    }


def _table(runs: list[WholeRun], limit_bytes: int | None) -> Table:
    table = Table()
    for heading in ("plan", "predicted", "measured", "error", "of ours", "spread", "memory", "note"):
        table.add_column(heading, justify="left" if heading in ("plan", "note") else "right")
    ours = runs[0].price
    for run in [runs[0], *sorted(runs[1:], key=_time_s)]:
        price = run.price
        predicted = "-" if run.predicted_s is None else _in_ms(run.predicted_s)
        if price is None:
            table.add_row(run.name, predicted, *"-----", "" if run.failure is None else run.failure.reason.value)
            continue
        table.add_row(
            run.name,
            predicted,
            _in_ms(price.time_s),
            "-" if run.error is None else f"{100 * run.error:+.0f} %",
            "-" if ours is None else f"{price.time_s / ours.time_s:.2f}",
            "-" if price.spread is None else f"{100 * price.spread:.0f} %",
            f"{price.peak_bytes / 2**20:.1f} MiB",
            _note(price, limit_bytes),
        )
    return table


def _time_s(run: WholeRun) -> float:
    return float("inf") if run.price is None else run.price.time_s


def _note(price: Price, limit_bytes: int | None) -> str:
    if not _fits(price, limit_bytes):
        return "does not fit"
    return "stopped early" if price.provenance.was_stopped_early else ""


def _fits(price: Price, limit_bytes: int | None) -> bool:
    return limit_bytes is None or price.peak_bytes <= limit_bytes


def _in_ms(time_s: float) -> str:
    return f"{time_s * 1e3:.2f} ms"
