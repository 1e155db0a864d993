"""Prices a pipeline whose actors share the cores of a host: by its whole program, as it runs.

On accelerators a task takes what it takes, whatever the other actors do. On virtual devices compiled code spreads over
all cores that it finds, and a task is slowed by those which it meets: in a pipeline of an MLP on 16 cores, the same one
took 3.4 ms beside one task and 5.3 ms beside another. Which meet, the program decides; so it runs, on all actors.
"""

import math
import statistics
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from jaxquard.errors import JaxquardError, PricingError
from jaxquard.ir.program import Program
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.time_loop import time_loop
from jaxquard.planner.step.apply_plan import AppliedStep
from jaxquard.pricing import Price, PriceCache, ShardedProgram
from jaxquard.pricing.compile.partitioner_warnings import catch_warnings
from jaxquard.pricing.measure.machine.environment import environment_key, provenance_of
from jaxquard.pricing.measure.runs.run_rounds import spread_of
from jaxquard.pricing.program.fingerprint import Fingerprints, combine_keys
from jaxquard.pricing.program.lower_program import lower_program, lowered_key
from jaxquard.pricing.program.sharded_program import ACTORS_AXIS
from jaxquard.runtime.remote_mesh import RemoteMesh


def price_pipeline(
    problem: PlanProblem,
    applied: AppliedStep,
    program: Program,
    tasks: Sequence[ShardedProgram],
    *,
    cache: PriceCache | None,
) -> Price:
    """Returns the price of a step on actors of this process; the time is the median step of a training loop.

    Args:
        program: of the step.
        tasks: its calls.
        cache: where it is kept, or found.

    Raises:
        PricingError: if it does not run.
    """
    mesh = _mesh_of_all(applied)
    key = combine_keys(environment_key(mesh, measures="pipeline"), str(program), *_task_keys(tasks, mesh))
    known = None if cache is None else cache.find(key)
    if known is not None:
        return known
    try:
        times_s, num_rematerialized = _time_steps(problem, applied)
    except (JaxquardError, jax.errors.JaxRuntimeError) as error:
        raise PricingError(f"the pipeline does not run: {str(error).splitlines()[0]}") from error
    price = Price(
        time_s=statistics.median(times_s),
        peak_bytes=0,
        spread=spread_of(times_s),
        provenance=provenance_of(mesh, num_runs=len(times_s)),
        num_rematerialized=num_rematerialized,
    )
    if cache is not None:
        cache.store(key, price, name="pipeline")
    return price


def _time_steps(problem: PlanProblem, applied: AppliedStep) -> tuple[list[float], int]:
    """Returns the seconds of the steps, and how many values the partitioner gathers whole."""
    caught: list[int] = []
    actors = RemoteMesh((applied.num_actors,), tuple(applied.axes.values()), tuple(applied.axes))
    with actors, catch_warnings(caught.append):
        step = actors.distributed(applied.fn, in_shardings=applied.in_shardings, donate_argnums=applied.donate_argnums)
        times_s = time_loop(step, problem.args, state=applied.donate_argnums)
    return times_s, sum(caught)


def _mesh_of_all(applied: AppliedStep) -> Mesh:
    sizes = (applied.num_actors, *applied.axes.values())
    return Mesh(np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes), (ACTORS_AXIS, *applied.axes))


def _task_keys(tasks: Sequence[ShardedProgram], mesh: Mesh) -> list[str]:
    of_actor, fingerprints = Mesh(mesh.devices[0], mesh.axis_names[1:]), Fingerprints()
    return [fingerprints.key(task) or lowered_key(lower_program(task, mesh=of_actor)) for task in tasks]
