"""Products inside of a `shard_map` over other axes of the mesh that checks along which axes values vary (`check_vma`).

Our own `shard_map` inside does not check, so its results look the same along the axes of the one around. These
functions say again along which they vary, so that JAX sums cotangents where it should.
"""

from typing import Any

import jax
from jax import lax

from jaxquard._jax_compat import varying_axes


def vary_like(values: Any, *others: jax.Array) -> Any:
    """Returns the values, marked as varying along all axes along which one of the others does."""
    axes = frozenset().union(*(varying_axes(other) for other in others))

    def mark(value: jax.Array) -> jax.Array:
        missing = tuple(axes - varying_axes(value))
        return lax.pcast(value, missing, to="varying") if missing else value

    return jax.tree.map(mark, values) if axes else values


def sum_over_copies(gradient: jax.Array, primal: jax.Array) -> jax.Array:
    """Sums the gradient of an array that chips along other axes have copies of."""
    extra = tuple(varying_axes(gradient) - varying_axes(primal))
    return lax.psum(gradient, extra) if extra else gradient
