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
            devices = _with_devices(mesh)
            measured = pricing.MeasuredPricer(devices, cache=found, num_runs=num_runs, takes_medians=True)
            return stack.enter_context(measured)

        yield make


def find_cache(cache: Any) -> pricing.PriceCache | None:
    """Returns the cache that an option of a search names: the user's own, another, or none."""
    return pricing.PriceCache() if cache == "default" else cache


def _with_devices(mesh: AbstractMesh) -> Mesh:
    """Returns the devices of an actor.

    Raises:
        PlanError: if there are fewer devices than an actor has.
    """
    found = jax.devices()
    if len(found) < mesh.size:
        raise PlanError(
            f"an actor of {mesh.size} devices cannot be measured on {len(found)}. Use the pricer model or compile, or "
            'start with more devices: jax.config.update("jax_num_cpu_devices", ...).'
        )
    names, shape = mesh.axis_names, tuple(mesh.shape.values())
    return Mesh(np.array(found[: mesh.size]).reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))
