"""The host whose cores are the devices of a plan."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxquard.ir.program import Program
from jaxquard.planner.record.plan import Plan
from jaxquard.planner.search.pricers import find_cache
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.targets import PlanTarget, mesh_maker
from jaxquard.planner.step.apply_plan import AppliedStep
from jaxquard.pricing import Price, ShardedProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredHost:
    """The host of a step.

    Attributes:
        price_overhead: of a step that a plan was applied to: what the host does beside the tasks.
        price_pipeline: of a plan, the program of its step, that program's tasks and the end of the time for it, where
            actors share the cores and all of them are here; None elsewhere.
    """

    price_overhead: Callable[[PlanProblem, AppliedStep], Price]
    price_pipeline: Callable[[PlanProblem, Plan, Program, Sequence[ShardedProgram], float], Price] | None = None


def find_measured_host(target: PlanTarget, *, cache: Any = "default") -> MeasuredHost | None:
    """Returns this host as the pricer `"measure"` finds it.

    There is one for virtual devices of this process, which share its cores; those of a larger target are measured as if
    each host of it had as many. On accelerators the host is ahead of the devices, and actors that are processes have
    hosts that are not here.
    """
    if target.runtime != "in_process" or jax.default_backend() != "cpu":
        return None
    # Loaded when they are asked for, as pricers are.
    from jaxquard.planner.search.host_overhead import price_host_overhead
    from jaxquard.planner.search.price_pipeline import price_pipeline

    found = find_cache(cache)
    overhead = functools.partial(price_host_overhead, cache=found)
    if target.num_devices > len(jax.devices()):
        return MeasuredHost(price_overhead=overhead)
    pipeline = functools.partial(price_pipeline, make_mesh=mesh_maker(target, {}), cache=found)
    return MeasuredHost(price_overhead=overhead, price_pipeline=pipeline)
