"""Prices a pipeline whose actors share the cores of a host: by its whole program, as it runs.

On accelerators a task takes what it takes, whatever the other actors do. On virtual devices compiled code spreads over
all cores that it finds, and a task is slowed by those which it meets: in a pipeline of an MLP on 16 cores, the same one
took 3.4 ms beside one task and 5.3 ms beside another. Which meet, the program decides; so it runs, on all actors.
"""

import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from jaxquard.errors import PricingError
from jaxquard.ir.program import Program
from jaxquard.planner.record.plan import Plan
from jaxquard.planner.search.measure_plans import measure_plans
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.pricing import Price, PriceCache, ShardedProgram
from jaxquard.pricing.end_of_time import OutOfTimeError
from jaxquard.pricing.measure.machine.environment import environment_key, provenance_of
from jaxquard.pricing.program.fingerprint import Fingerprints, combine_keys
from jaxquard.pricing.program.lower_program import lower_program, lowered_key
from jaxquard.pricing.program.sharded_program import ACTORS_AXIS
from jaxquard.runtime.remote_mesh import RemoteMesh


def price_pipeline(
    problem: PlanProblem,
    plan: Plan,
    program: Program,
    tasks: Sequence[ShardedProgram],
    end_s: float = math.inf,
    *,
    make_mesh: Callable[[Plan], RemoteMesh],
    cache: PriceCache | None,
) -> Price:
    """Returns the price of a step on actors of this process; the time is the median step of a training loop.

    Args:
        program: of the step.
        tasks: its calls.
        end_s: of the time for it, by `time.monotonic`.
        make_mesh: starts the actors of a plan.
        cache: where it is kept, or found.

    Raises:
        OutOfTimeError: if the time is over before it has run.
        PricingError: if it does not run.
    """
    sizes = (plan.num_actors, *plan.axes.values())
    mesh = Mesh(np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes), (ACTORS_AXIS, *plan.axes))
    key = "" if cache is None else _find_key(program, tasks, mesh)
    known = None if cache is None else cache.find(key)
    if known is not None:
        return known
    found = measure_plans(problem, [plan], make_mesh=make_mesh, end_s=end_s)
    if not found:
        raise OutOfTimeError
    (measured,) = found
    if measured.failure:
        raise PricingError(f"the pipeline does not run: {measured.failure}")
    price = Price(
        time_s=measured.time_s,
        peak_bytes=0,
        spread=measured.spread,
        provenance=provenance_of(mesh, num_runs=measured.num_steps),
        num_rematerialized=measured.num_rematerialized,
    )
    if cache is not None:
        cache.store(key, price, name="pipeline")
    return price


def _find_key(program: Program, tasks: Sequence[ShardedProgram], mesh: Mesh) -> str:
    """Returns a key of all that decides the price."""
    of_actor, fingerprints = Mesh(mesh.devices[0], mesh.axis_names[1:]), Fingerprints()
    texts = [fingerprints.key(task) or lowered_key(lower_program(task, mesh=of_actor)) for task in tasks]
    return combine_keys(environment_key(mesh, measures="pipeline"), str(program), *texts)
