"""Which result takes the place of which argument in the next step.

A training step returns its state in the shape in which it came. So an argument, or a child of one,
is paired with the result, or child of the result, that has the same tree, shapes and dtypes. An
argument that is not donated is paired only as a whole and only if it is a container: a lone array of
the same type as some result is as likely to be data.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax


def pair_results(args: Sequence[Any], result: Any, *, donated: Sequence[bool]) -> list[int | None]:
    """For each flat leaf of `args`, the flat leaf of `result` that replaces it; None for data.

    Args:
        args: the dynamic arguments, with leaves that have shape and dtype.
        result: the result, likewise.
        donated: for each argument, whether the step takes its buffers.
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
