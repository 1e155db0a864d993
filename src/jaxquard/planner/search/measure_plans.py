"""Runs plans on the devices at hand: the median step of a short training loop of each.

Each plan runs by itself, in one block: programs that run in turns find the caches full of the others' weights.

Where XLA's partitioner finds no good way between two shardings of a plan, its warnings are caught and counted, as in
any other part of a search.
"""

import logging
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax

from jaxquard.errors import JaxquardError
from jaxquard.planner.record.plan import Plan
from jaxquard.planner.search.make_arguments import make_arguments
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.time_loop import time_loop
from jaxquard.planner.step.apply_plan import apply_plan
from jaxquard.pricing.end_of_time import OutOfTimeError, check_time
from jaxquard.runtime.remote_mesh import RemoteMesh

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """A plan that ran.

    Attributes:
        time_s: the median step; infinite if it failed.
        spread: from the fastest quarter to the slowest, as a part of the median.
        num_steps: that were timed.
        failure: the first line of the error; "" if it ran.
        num_rematerialized: values that the partitioner gathers whole, as it finds no better way between two shardings.
    """

    plan: Plan = field(repr=False)
    time_s: float
    spread: float = 0.0
    num_steps: int = 0
    failure: str = ""
    num_rematerialized: int = 0


def measure_plans(
    problem: PlanProblem,
    plans: Sequence[Plan],
    *,
    make_mesh: Callable[[Plan], RemoteMesh],
    end_s: float = math.inf,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> list[MeasuredPlan]:
    """Runs plans one after the other, until a moment of `time.monotonic`, at which one that compiles is left behind."""
    found: list[MeasuredPlan] = []
    for number, plan in enumerate(plans):
        if on_progress is not None:
            on_progress(number, len(plans), f"running {describe_shape(plan)}")
        try:
            check_time(end_s)
            found.append(_measure(problem, plan, make_mesh, end_s))
        except OutOfTimeError:
            break
        if count := found[-1].num_rematerialized:
            _log.info("%s: the partitioner gathers %d values whole", describe_shape(plan), count)
    return found


def describe_shape(plan: Plan) -> str:
    """Returns the shape of a plan in a few words, such as "2 stages x data 4, 1f1b, 4 microbatches"."""
    axes = " x ".join(f"{axis} {size}" for axis, size in plan.axes.items())
    stages = "1 stage" if plan.num_stages == 1 else f"{plan.num_stages} stages on {plan.num_actors} actors"
    count = "1 microbatch" if plan.num_microbatches == 1 else f"{plan.num_microbatches} microbatches"
    return f"{stages}, {axes}, {plan.schedule}, {count}"


def _measure(problem: PlanProblem, plan: Plan, make_mesh: Callable[[Plan], RemoteMesh], end_s: float) -> MeasuredPlan:
    # A plan that runs nothing needs no compilers.
    from jaxquard.pricing.compile.partitioner_warnings import catch_warnings

    caught: list[int] = []
    try:
        with make_mesh(plan) as mesh, catch_warnings(caught.append):
            try:
                times_s = _loop_times(problem, plan, mesh, end_s)
            finally:
                caught.append(mesh.engine.num_rematerialized)
    except (JaxquardError, jax.errors.JaxRuntimeError) as error:
        failure = str(error).splitlines()[0]
        return MeasuredPlan(plan=plan, time_s=float("inf"), failure=failure, num_rematerialized=sum(caught))
    first, median_s, third = statistics.quantiles(times_s, n=4)
    spread = (third - first) / median_s
    return MeasuredPlan(
        plan=plan, time_s=median_s, spread=spread, num_steps=len(times_s), num_rematerialized=sum(caught)
    )


def _loop_times(problem: PlanProblem, plan: Plan, mesh: RemoteMesh, end_s: float) -> list[float]:
    applied = apply_plan(problem.step, problem.args, plan)
    step = mesh.distributed(
        applied.fn,
        in_shardings=applied.in_shardings,
        donate_argnums=applied.donate_argnums,
        progress=lambda done, total, name: check_time(end_s),
    )
    state = applied.donate_argnums
    return time_loop(step, make_arguments(problem, state=state, mesh=mesh), state=state, end_s=end_s)
