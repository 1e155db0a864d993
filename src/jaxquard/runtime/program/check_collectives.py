"""Refuses a program whose collectives its platform has not, before anything is compiled."""

from jaxquard.errors import MeshError
from jaxquard.ir.jaxpr_tools import Jaxpr, sub_jaxprs
from jaxquard.ir.program import Program

# By platform, collectives that XLA cannot compile there (jax 0.10 and 0.11), and what to use instead.
_MISSING = {
    "cpu": {
        "ragged_all_to_all": "Exchange blocks of one size with jax.lax.all_to_all: a capacity for each pair of devices"
    },
}


def check_collectives(program: Program, *, platform: str) -> None:
    """Checks that every collective of a program exists on a platform.

    Raises:
        MeshError: naming the task and the collective.
    """
    missing = _MISSING.get(platform, {})
    for call in program.calls if missing else ():
        found = None if call.code is None else _find(call.code.jaxpr, frozenset(missing))
        if found is not None:
            raise MeshError(
                f"the task {call.name} uses jax.lax.{found}, which XLA has not on {platform}. {missing[found]}, or "
                "run on another platform."
            )


def _find(jaxpr: Jaxpr, names: frozenset[str]) -> str | None:
    """Returns the first primitive of these names in a jaxpr, or in those that it calls."""
    seen: set[int] = set()
    waiting = [jaxpr]
    while waiting:
        jaxpr = waiting.pop()
        if id(jaxpr) in seen:
            continue
        seen.add(id(jaxpr))
        for equation in jaxpr.eqns:
            if equation.primitive.name in names:
                return equation.primitive.name
            waiting.extend(sub_jaxprs(equation))
    return None
