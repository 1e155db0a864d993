"""A flat step as a function of whole leaves: stacks of layers are taken apart as they enter, and put together again."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard.intraop.step_parts import Part, by_leaf
from jaxquard.intraop.traced_step import TracedStep


def whole_step(
    step: TracedStep, closed: core.ClosedJaxpr, *, in_specs: Sequence[PartitionSpec], mesh: Mesh
) -> Callable[..., list[Any]]:
    """A function from the flat arguments and constants of a step to its flat results.

    Args:
        closed: the step in parts, with its shardings.
        in_specs: how the inputs of that are cut.
    """
    evaluate = core.jaxpr_as_fun(closed)
    num_leaves = len(step.arg_types)

    def run(*leaves: jax.Array) -> list[jax.Array]:
        parts = [
            _take(leaves[part.leaf], part.index, NamedSharding(mesh, spec))
            for part, spec in zip(step.inputs, in_specs, strict=False)
        ]
        outputs = evaluate(*parts, *leaves[num_leaves:])
        return [
            _join([step.outputs[place] for place in places], [outputs[place] for place in places])
            for _, places in sorted(by_leaf(step.outputs).items())
        ]

    return run


def _take(leaf: jax.Array, index: Sequence[int], sharding: NamedSharding) -> jax.Array:
    if not index:
        return leaf
    for place in index:
        leaf = lax.index_in_dim(leaf, place, keepdims=False)
    return lax.with_sharding_constraint(leaf, sharding)


def _join(parts: Sequence[Part], values: Sequence[jax.Array]) -> jax.Array:
    """Puts the parts of a leaf, which are in order, together."""
    if not parts[0].index:
        return values[0]
    inner: dict[int, list[int]] = {}
    for place, part in enumerate(parts):
        inner.setdefault(part.index[0], []).append(place)
    joined = [
        _join([Part(leaf=0, index=parts[place].index[1:]) for place in places], [values[place] for place in places])
        for places in inner.values()
    ]
    return jnp.stack(joined)
