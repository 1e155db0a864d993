"""The host whose cores are the devices of a plan."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh

from jaxquard.planner.search.pricers import find_cache, make_pricers
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.targets import PlanTarget
from jaxquard.planner.step.apply_plan import AppliedStep
from jaxquard.pricing import Price, Pricer


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredHost:
    """The host of a step: what it does beside the tasks.

    Attributes:
        price_overhead: of a step that a plan was applied to.
        pricer_alone: of a mesh, for an actor that runs alone; None where actors share nothing.
    """

    price_overhead: Callable[[PlanProblem, AppliedStep], Price]
    pricer_alone: Callable[[AbstractMesh], Pricer] | None = None


@contextlib.contextmanager
def open_measured_host(
    target: PlanTarget, *, cache: Any = "default", num_runs: int = 10
) -> Iterator[MeasuredHost | None]:
    """Yields this host as the pricer `"measure"` finds it.

    There is one for virtual devices of this process, which share its cores; those of a larger target are measured as if
    each host of it had as many. On accelerators the host is ahead of the devices, and actors that are processes have
    hosts that are not here.

    Args:
        num_runs: of a task.
    """
    if target.runtime != "in_process" or jax.default_backend() != "cpu":
        yield None
        return
    # Loaded when it is asked for, as pricers are.
    from jaxquard.planner.search.host_overhead import price_host_overhead

    overhead = functools.partial(price_host_overhead, cache=find_cache(cache))
    with make_pricers("measure", target, cache=cache, num_runs=num_runs, are_alone=True) as make_pricer:
        are_all_here = target.num_devices <= len(jax.devices())
        pricer_alone = functools.cache(make_pricer) if make_pricer and are_all_here else None
        yield MeasuredHost(price_overhead=overhead, pricer_alone=pricer_alone)
