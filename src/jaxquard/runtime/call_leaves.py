"""The leaves of a call: the spec that the user gives each, and the result that replaces each in the next step.

A training step returns its state in the shape in which it came. So an argument, or a child of one,
is paired with the result, or child of the result, that has the same tree, shapes and dtypes. An
argument that is not donated is paired only as a whole and only if it is a container: a lone array of
the same type as some result is as likely to be data.
"""

from collections.abc import Iterator, Sequence
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
    """Returns the spec of each leaf of `tree`; None where the user gave none.

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
                f"{where} is {value}: a dim of size {size} cannot be sharded into {count} equal parts (shape {shape})."
            )
    return spec


def pair_results(args: Sequence[Any], result: Any, *, donated: Sequence[bool]) -> list[int | None]:
    """Finds, for each flat leaf of `args`, the flat leaf of `result` that replaces it; None for data.

    Args:
        args: the dynamic arguments, with leaves that have shape and dtype.
        result: the result, likewise.
        donated: for each argument, whether the step donates it.
    """
    candidates = list(_subtrees(result, 0, depth=2))
    used: set[int] = set()
    pairs: list[int | None] = []
    for arg, is_donated in zip(args, donated, strict=True):
        if is_donated or _children(arg):
            pairs.extend(_pair(arg, candidates, used, depth=2 if is_donated else 0))
        else:
            pairs.append(None)
    return pairs


def _pair(arg: Any, candidates: list[tuple[int, Any]], used: set[int], depth: int) -> list[int | None]:
    leaves, tree = jax.tree.flatten(arg)
    types = list(map(_type, leaves))
    for start, other in candidates:
        numbers = range(start, start + len(leaves))
        other_leaves, other_tree = jax.tree.flatten(other)
        if leaves and tree == other_tree and types == list(map(_type, other_leaves)) and used.isdisjoint(numbers):
            used.update(numbers)
            return list(numbers)
    children = _children(arg)
    if depth and children:
        return [pair for child in children for pair in _pair(child, candidates, used, depth - 1)]
    return [None] * len(leaves)


def _subtrees(tree: Any, start: int, depth: int) -> Iterator[tuple[int, Any]]:
    yield start, tree
    children = _children(tree)
    if depth:
        for child in children:
            yield from _subtrees(child, start, depth - 1)
            start += len(jax.tree.leaves(child))


def _children(tree: Any) -> list[Any]:
    """The direct children of a pytree; none for a leaf."""
    if jax.tree_util.all_leaves([tree]):
        return []
    return jax.tree.flatten(tree, is_leaf=lambda node: node is not tree)[0]


def _type(leaf: Any) -> tuple[Any, ...]:
    return tuple(leaf.shape), leaf.dtype
