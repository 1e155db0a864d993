"""A value held to a sharding, as equations that stand after the one that makes it."""

import functools
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxquard.ir.jaxpr_tools import Equation, splice_traced


def hold_value(atom: Any, sharding: NamedSharding) -> tuple[list[Equation], Any]:
    """The equations, and the held value."""
    equations, (held,) = splice_traced(_traced(atom.aval.shape, atom.aval.dtype, sharding), [atom])
    return equations, held


@functools.lru_cache(maxsize=4096)
def _traced(shape: tuple[int, ...], dtype: Any, sharding: NamedSharding) -> Any:
    """Traced once: a step holds a thousand values in a few dozen ways."""
    value = jax.ShapeDtypeStruct(shape, dtype)
    return jax.make_jaxpr(lambda value: [jax.lax.with_sharding_constraint(value, sharding)])(value)
