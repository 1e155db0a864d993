"""The user's shardings as specs, one for each flat leaf."""

from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from jaxquard.errors import ShardingError
from jaxquard.pipeline.specs.infer_specs import Spec, spec_of

# Stands for "nothing asked for" in a tree, where None would be a node without leaves.
_UNSET = object()


def _is_sharding(value: Any) -> bool:
    return value is None or isinstance(value, PartitionSpec | jax.sharding.Sharding)


def flat_specs(shardings: Any, tree: Any, *, mesh: AbstractMesh, what: str) -> list[Spec | None]:
    """For each leaf of `tree`, its spec; None where nothing was asked for.

    Args:
        shardings: a pytree prefix of shardings.
        tree: the arguments or results, with leaves that have a shape.
        mesh: the axes that specs may name.
        what: "in_shardings" or "out_shardings", for errors.

    Raises:
        ShardingError: naming the leaf.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if shardings is None:
        return [None] * len(leaves)
    shardings = jax.tree.map(lambda given: _UNSET if given is None else given, shardings, is_leaf=_is_sharding)
    try:
        spread = jax.tree.broadcast(shardings, tree, is_leaf=_is_sharding)
    except ValueError as error:
        raise ShardingError(
            f"{what} does not fit: it must be a pytree prefix of {jax.tree.structure(tree)}, but is {shardings!r}."
        ) from error
    given = jax.tree.leaves(spread, is_leaf=lambda value: value is not None and _is_sharding(value))
    return [
        _checked(value, leaf, f"{what}{jax.tree_util.keystr(path)}", mesh)
        for value, (path, leaf) in zip(given, leaves, strict=True)
    ]


def _checked(value: Any, leaf: Any, where: str, mesh: AbstractMesh) -> Spec | None:
    if value is _UNSET:
        return None
    if isinstance(value, NamedSharding):
        value = value.spec
    if not isinstance(value, PartitionSpec):
        raise ShardingError(f"{where} must be a PartitionSpec or a NamedSharding; found {value!r}.")
    spec = spec_of(value)
    shape = tuple(leaf.shape)
    if len(spec) > len(shape):
        raise ShardingError(f"{where} is {value}, which has more dims than the array's shape {shape}.")
    sizes = dict(mesh.shape)
    for axes, size in zip(spec, shape, strict=False):
        count = 1
        for axis in axes:
            if axis not in sizes:
                raise ShardingError(
                    f"{where} names the axis {axis!r}, but the actors' mesh has {', '.join(map(repr, sizes))}."
                )
            count *= sizes[axis]
        if size % count:
            raise ShardingError(
                f"{where} is {value}: a dim of size {size} cannot be cut into {count} equal parts (shape {shape})."
            )
    return spec
