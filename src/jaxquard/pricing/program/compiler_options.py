"""Options of the compiler, on top of the user's.

XLA:CPU runs what does not depend on each other at the same time, as it finds threads. In JAX 0.10.2 a collective in the
branch of a `lax.cond` and one outside of it may so wait for each other, some devices at the one and some at the other,
and after 40 s XLA ends the whole process ("Termination timeout for all to all"). Seen every time with one step on 8
devices, never with a schedule that saves memory, which has everything in one order. (The older name of that,
xla_cpu_enable_concurrency_optimized_scheduler=False, counts in XLA_FLAGS only: as an option it is taken and ignored.)

That schedule made steps of GPT 4 to 12 % slower on 2 cores, so it is for programs with branches and loops alone; in
others this was never seen.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core
from jax.sharding import Mesh

from jaxquard.ir.jaxpr_tools import Jaxpr, sub_jaxprs

_IN_ORDER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
_BRANCHES = {"cond", "while", "scan"}


def compiler_options(closed: core.ClosedJaxpr, *, mesh: Mesh) -> dict[str, str] | None:
    """Returns the options that a program for a mesh is compiled with."""
    device = mesh.devices.flat[0]
    if device.platform != "cpu" or mesh.size == 1:
        return None
    opened: Any = closed
    return dict(_IN_ORDER) if _has_branches(opened.jaxpr) and _is_known(device) else None


def jit_on_mesh(closed: core.ClosedJaxpr, *, mesh: Mesh, **settings: Any) -> Callable[..., list[Any]]:
    """`jax.jit` of a jaxpr with these options, and without them in a function that is traced, where JAX has none."""
    evaluate = core.jaxpr_as_fun(closed)
    options = compiler_options(closed, mesh=mesh)
    alone, inside = (jax.jit(evaluate, compiler_options=found, **settings) for found in (options, None))

    def call(*inputs: jax.Array) -> list[Any]:
        is_traced = any(isinstance(value, jax.core.Tracer) for value in inputs)
        return inside(*inputs) if is_traced else alone(*inputs)

    return alone if options is None else call


def _has_branches(jaxpr: Jaxpr) -> bool:
    return any(
        equation.primitive.name in _BRANCHES or any(map(_has_branches, sub_jaxprs(equation))) for equation in jaxpr.eqns
    )


@functools.cache
def _is_known(device: jax.Device) -> bool:
    """Returns whether this version of XLA has the option."""
    try:
        with jax.default_device(device):
            jax.jit(lambda: 0, compiler_options=_IN_ORDER).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
