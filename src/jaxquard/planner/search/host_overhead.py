"""Measures the host overhead of a step: what its call takes beside the tasks.

Before the first task the host binds every argument and brings the batch to the devices, after the last one it hands the
results out. A step that returns its arguments, all of them donated, has all of that and no task. Between two of them
the host sleeps, as it does while tasks run: one that comes from the last step at once is up to twice as fast.
"""

import math
import statistics
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxquard.planner.search.make_arguments import make_arguments
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.time_loop import time_loop
from jaxquard.planner.step.apply_plan import AppliedStep
from jaxquard.pricing import Price, PriceCache
from jaxquard.pricing.measure.machine.environment import environment_key, provenance_of
from jaxquard.pricing.measure.runs.run_rounds import spread_of
from jaxquard.pricing.program.fingerprint import combine_keys
from jaxquard.runtime.remote_mesh import RemoteMesh

_PAUSE_S = 0.02


def price_host_overhead(problem: PlanProblem, applied: AppliedStep, *, cache: PriceCache | None) -> Price:
    """Returns the price of it on one actor of the plan, in this process; the time is the median.

    Args:
        cache: where it is kept, or found.
    """
    mesh = _actor_mesh(applied)
    key = combine_keys(environment_key(mesh, measures="host overhead", pause_s=_PAUSE_S), _describe(problem, applied))
    known = None if cache is None else cache.find(key)
    if known is not None:
        return known
    state = applied.donate_argnums
    others = [number for number in range(len(problem.args)) if number not in state]

    def return_all(*args: Any) -> tuple[Any, ...]:
        """Returns the state first, so that none of the others is taken for it."""
        return tuple(args[number] for number in (*state, *others))

    with RemoteMesh((1,), tuple(applied.axes.values()), tuple(applied.axes)) as actor:
        everything = tuple(range(len(problem.args)))
        step = actor.distributed(return_all, in_shardings=applied.in_shardings, donate_argnums=everything)
        times_s = time_loop(step, make_arguments(problem, state=state, mesh=actor), state=state, pause_s=_PAUSE_S)
    price = Price(
        time_s=statistics.median(times_s),
        peak_bytes=0,
        spread=spread_of(times_s),
        provenance=provenance_of(mesh, num_runs=len(times_s)),
    )
    if cache is not None:
        cache.store(key, price, name="host overhead")
    return price


def _actor_mesh(applied: AppliedStep) -> Mesh:
    sizes = tuple(applied.axes.values())
    return Mesh(np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes), tuple(applied.axes))


def _describe(problem: PlanProblem, applied: AppliedStep) -> str:
    """Returns what decides the overhead beside the environment: the leaves, where they live, which are state."""
    leaves = [(leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(list(problem.args))]
    sizes = [len(jax.tree.leaves(arg)) for arg in problem.args]
    return repr((leaves, sizes, applied.in_shardings, applied.donate_argnums))
