"""The pricers of a search: one for each mesh of an actor, closed together."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxquard import pricing
from jaxquard.errors import PlanError
from jaxquard.planner.search.step_pricing import MakePricer
from jaxquard.planner.search.targets import PlanTarget
from jaxquard.pricing.program.sharded_program import ACTORS_AXIS

# A pricer is loaded when it is asked for: those that compile for a target bring their readers of HLO.
PRICERS = ("model", "compile", "mock-gpu", "measure")


@contextlib.contextmanager
def make_pricers(
    name: str, target: PlanTarget, *, cache: Any = "default", num_runs: int = 10
) -> Iterator[MakePricer | None]:
    """Yields a function that makes the pricer of a mesh; None for the closed form alone.

    Args:
        num_runs: of a program that is measured.

    Raises:
        PlanError: if there is no such pricer, or none of the devices that it needs.
    """
    if name not in PRICERS:
        raise PlanError(f"pricer={name!r} is not known. Use one of: {', '.join(PRICERS)}.")
    if name == "model":
        yield None
        return
    if name == "measure" and not target.has_devices:
        raise PlanError(f"nothing can be measured: {target.cluster.name} is not here. Use the pricer model or compile.")
    found = find_cache(cache)
    with contextlib.ExitStack() as stack:

        def make(mesh: AbstractMesh) -> pricing.Pricer:
            if name == "compile":
                return stack.enter_context(pricing.CompilePricer(target.cluster, mesh, cache=found))
            if name == "mock-gpu":
                return stack.enter_context(pricing.MockGpuPricer(target.cluster, mesh, cache=found))
            num_actors = target.num_devices // mesh.size if target.runtime == "in_process" else 1
            devices = _with_devices(mesh, num_actors=num_actors)
            from jaxquard.planner.search.all_actors_pricer import AllActorsPricer

            measured = AllActorsPricer if devices.size > mesh.size else pricing.MeasuredPricer
            return stack.enter_context(measured(devices, cache=found, num_runs=num_runs, takes_medians=True))

        yield make


def find_cache(cache: Any) -> pricing.PriceCache | None:
    """Returns the cache that an option of a search names: the user's own, another, or none."""
    return pricing.PriceCache() if cache == "default" else cache


def _with_devices(mesh: AbstractMesh, *, num_actors: int) -> Mesh:
    """Returns the devices of an actor, and on a CPU those of all actors of this process, as far as there are.

    Virtual devices share the cores of their host. An actor that runs alone has those of the others as well, and takes a
    fraction of the time that it takes in a pipeline; so all run the same program, along an axis of their own that
    nothing is sharded over.

    Raises:
        PlanError: if there are fewer devices than an actor has.
    """
    found = jax.devices()
    if len(found) < mesh.size:
        raise PlanError(
            f"an actor of {mesh.size} devices cannot be measured on {len(found)}. Use the pricer model or compile, or "
            'start with more devices: jax.config.update("jax_num_cpu_devices", ...).'
        )
    num_actors = min(num_actors, len(found) // mesh.size) if found[0].platform == "cpu" else 1
    shape, names = tuple(mesh.shape.values()), mesh.axis_names
    if num_actors > 1:
        shape, names = (num_actors, *shape), (ACTORS_AXIS, *names)
    devices = np.array(found[: num_actors * mesh.size]).reshape(shape)
    return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))
