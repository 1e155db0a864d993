"""Holds a sharded step against `jax.jit` of the same step on one device."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxquard.intraop.plan.sharded_step import CompiledStep
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.shardings.layouts import Storage

# Sums of at most a few thousand float32 products, in another order: sqrt(4096) roundings of 2**-24, and some room for
# what follows them, of the largest value there is.
TOLERANCE = 64 * 2**-24 * 8


def check_same(found: Any, wanted: Any, *, tolerance: float = TOLERANCE) -> None:
    """Every leaf, within a part of the largest value of that leaf."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    paths, _ = jax.tree.flatten_with_path(wanted)
    for (path, expected), value in zip(paths, jax.tree.leaves(found), strict=True):
        name = jax.tree_util.keystr(path)
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype), name
        expected, value = (_numbers(leaf) for leaf in (expected, value))
        bound = tolerance * max(np.abs(expected).max(initial=0.0), 1e-3)
        worst = np.abs(value - expected).max(initial=0.0)
        assert worst <= bound, f"{name} is off by {worst}, allowed {bound}"


def _numbers(leaf: Any) -> Any:
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf, dtype=np.float64)


def check_step(
    step: Any,
    args: Any,
    analysis: Analysis,
    assignments: Sequence[Mapping[int, tuple[str, ...]]],
    *,
    mesh: Mesh,
    storage: Storage = Storage.AS_USED,
    tolerance: float = TOLERANCE,
) -> None:
    """The step under each assignment, beside the plain step."""
    wanted = jax.jit(step)(*args)
    for assignment in assignments:
        sharded = CompiledStep(analysis, assignment, mesh=mesh, storage=storage, donate=False)
        try:
            check_same(sharded(*args), wanted, tolerance=tolerance)
        except Exception as error:
            error.add_note(f"under {dict(assignment)}, {storage.value}")
            raise
