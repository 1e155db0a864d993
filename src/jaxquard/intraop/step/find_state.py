"""Finds the arguments of a step that are state: those that it returns again, anywhere in its result.

    step(params, moments, batch) -> (params, moments), loss
    step(state, batch) -> {"state": state, "loss": loss}

An argument is state if some subtree of the result has its structure and types. A single number is not, as a learning
rate has the type of a loss; nor is a single array, unless it is the first argument and the result or an item of it, as
a batch may have the type of what is made of it. Where several arguments or results are alike (a teacher and a student,
weights and their gradients), what the step computes shows which belong together (`update_distance`).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxquard.intraop.step.update_distance import UpdateDistances

# A leaf is this times as far with each operation between, so that one near pair counts for more than two far ones. What
# is many operations away still counts for more than what is no relation.
_FARTHER, _FAR = 3.0, 1e-3
# A tree that comes back as it is counts for hardly more than that: a step may return the old weights beside the new.
# And a leaf of another tree that does, for less than one that an operation changes.
_UNCHANGED, _KEPT = 1e-5, 2.5
# Of equal results the first is taken, and of equal arguments the first has it.
_LATER, _OUT_OF_ORDER = 1e-8, 1e-11


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subtree:
    """A part of the arguments or of the result.

    Attributes:
        start: where its leaves begin among the flat ones.
        depth: the number of containers around it.
    """

    tree: Any
    start: int
    depth: int

    @property
    def leaves(self) -> range:
        return range(self.start, self.start + self.tree.num_leaves)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePairs:
    """Arguments and the results that replace them.

    Attributes:
        results: for each flat argument, the flat result of the same place in the state that the step returns.
        unclear: first leaves of arguments that are alike, where nothing shows which of them are replaced; the first
            ones were taken.
    """

    results: tuple[int | None, ...]
    unclear: tuple[int, ...] = ()


def pair_state(
    in_tree: Any,
    arg_types: Sequence[Any],
    out_tree: Any,
    result_types: Sequence[Any],
    *,
    distances: UpdateDistances,
) -> StatePairs:
    """Pairs arguments with results.

    No result is taken twice. Large arguments choose first: the moments of an optimizer, which hold trees like the
    weights, are not taken for weights. Arguments and results that are alike are paired by how near they are, all
    together; of equal results, the outermost is taken, then the first.

    Args:
        in_tree: structure of the tuple of arguments.
        arg_types: of the flat arguments.
        out_tree: structure of the result.
        result_types: of the flat results.
        distances: the operations between arguments and results.
    """
    pairs: list[int | None] = [None] * len(arg_types)
    free = set(range(len(result_types)))
    results = _by_depth(out_tree)
    unclear: tuple[int, ...] = ()
    for alike in _alike(in_tree, arg_types):
        first = alike[0]
        options = [
            found
            for found in results
            if _have_one_form(found, first)
            and free.issuperset(found.leaves)
            and _may_replace(first, found)
            and _same_types(first, found, arg_types, result_types)
        ]
        if len(alike) == len(options) == 1:
            nearness = np.ones((1, 1))
        else:
            nearness = np.array([[_nearness(arg, found, distances) for found in options] for arg in alike])
        chosen = _nearest_pairs(nearness)
        for row, column in chosen:
            arg, found = alike[row], options[column]
            free.difference_update(found.leaves)
            pairs[arg.start : arg.start + len(arg.leaves)] = found.leaves
        if not unclear and _is_unclear(nearness, chosen):
            unclear = tuple(arg.start for arg in alike)
    return StatePairs(results=tuple(pairs), unclear=unclear)


def _nearest_pairs(nearness: np.ndarray) -> list[tuple[int, int]]:
    """Returns pairs of rows and columns, each once, as many as there can be, with the largest total nearness."""
    if not nearness.size:
        return []
    if nearness.size == 1:
        return [(0, 0)]
    from scipy.optimize import linear_sum_assignment  # Takes a while to import, and most steps do not need it.

    num_rows, num_columns = nearness.shape
    rows, columns = np.indices(nearness.shape)
    later = _LATER * columns / num_columns * (nearness > 0)
    order = _OUT_OF_ORDER * (rows - columns) ** 2 / (num_rows * num_columns)
    found = linear_sum_assignment(later + order - nearness)
    return [(int(row), int(column)) for row, column in zip(*found, strict=True)]


def _is_unclear(nearness: np.ndarray, chosen: Sequence[tuple[int, int]]) -> bool:
    """Returns true if an argument without a result is as near to one, or some pairs are only what was left over."""
    left = set(range(len(nearness))).difference(row for row, _ in chosen)
    if any(np.isclose(nearness[other, column], nearness[row, column]) for row, column in chosen for other in left):
        return True
    # What another one was before may well be kept for the next step.
    kept = (nearness == _UNCHANGED).any(axis=0)
    # Where nothing is near to anything, they are in order at least.
    return len({nearness[row, column] > 0 for row, column in chosen if not kept[column]}) == 2


def _nearness(arg: _Subtree, found: _Subtree, distances: UpdateDistances) -> float:
    """Returns how likely a result replaces an argument, by the operations between them: from 0 to less than 1."""
    steps = [distances.between(own, other) for own, other in zip(arg.leaves, found.leaves, strict=True)]
    if all(step == 0 for step in steps):
        return _UNCHANGED
    lengths = [step or _KEPT for step in steps if step is not None]
    return sum(_FARTHER**-length + _FAR / (1 + length) for length in lengths) / len(steps)


def _alike(in_tree: Any, arg_types: Sequence[Any]) -> Iterator[list[_Subtree]]:
    """Yields arguments that may be state, large ones first, those of one form together."""
    found = [arg for place, arg in _largest_first(in_tree) if not _is_data(arg, place, arg_types)]
    for _, same_size in itertools.groupby(found, key=_size):
        groups: list[list[_Subtree]] = []
        for arg in same_size:
            mine = next((group for group in groups if _are_alike(group[0], arg, arg_types)), None)
            if mine is None:
                groups.append([arg])
            else:
                mine.append(arg)
        yield from groups


def _are_alike(one: _Subtree, other: _Subtree, arg_types: Sequence[Any]) -> bool:
    return _have_one_form(one, other) and _same_types(one, other, arg_types, arg_types)


def _have_one_form(one: _Subtree, other: _Subtree) -> bool:
    """Compares structures; of the thousands of subtrees that a result may have, few have as many leaves."""
    return one.tree.num_leaves == other.tree.num_leaves and one.tree == other.tree


def changed_dtype(
    in_tree: Any, arg_types: Sequence[Any], out_tree: Any, result_types: Sequence[Any], pairs: Sequence[int | None]
) -> tuple[int, int] | None:
    """Returns an argument that would be state with the dtypes it had: its first leaf that differs, and the result's."""
    free = set(range(len(result_types))).difference(pairs)
    for place, arg in _largest_first(in_tree):
        if pairs[arg.start] is not None or _is_data(arg, place, arg_types):
            continue
        for found in _by_depth(out_tree):
            if _have_one_form(found, arg) and free.issuperset(found.leaves) and _may_replace(arg, found):
                leaves = list(zip(arg.leaves, found.leaves, strict=True))
                if all(arg_types[own].shape == result_types[other].shape for own, other in leaves):
                    return next(pair for pair in leaves if arg_types[pair[0]].dtype != result_types[pair[1]].dtype)
    return None


def _largest_first(in_tree: Any) -> list[tuple[int, _Subtree]]:
    """Returns the arguments that have leaves, with their places, the largest first."""
    found, start = [], 0
    for place, tree in enumerate(in_tree.children()):
        if tree.num_leaves:
            found.append((place, _Subtree(tree=tree, start=start, depth=0)))
        start += tree.num_leaves
    return sorted(found, key=lambda item: _size(item[1]))


def _size(arg: _Subtree) -> tuple[int, int]:
    """Returns a sort key: less for what has more leaves, or else more nodes."""
    return -arg.tree.num_leaves, -arg.tree.num_nodes


def _by_depth(tree: Any) -> list[_Subtree]:
    return sorted(_subtrees(_Subtree(tree=tree, start=0, depth=0)), key=lambda found: found.depth)


def _subtrees(subtree: _Subtree) -> Iterator[_Subtree]:
    """Yields a tree and all its subtrees, in order."""
    yield subtree
    start = subtree.start
    for child in subtree.tree.children():
        yield from _subtrees(_Subtree(tree=child, start=start, depth=subtree.depth + 1))
        start += child.num_leaves


def _is_leaf(subtree: _Subtree) -> bool:
    return subtree.tree.num_nodes == 1


def _is_data(arg: _Subtree, place: int, types: Sequence[Any]) -> bool:
    return _is_leaf(arg) and (place > 0 or not types[arg.start].shape)


def _may_replace(arg: _Subtree, found: _Subtree) -> bool:
    return not _is_leaf(arg) or found.depth <= 1


def _same_types(arg: _Subtree, found: _Subtree, arg_types: Sequence[Any], result_types: Sequence[Any]) -> bool:
    """Compares shapes and dtypes; weak types make no difference."""
    pairs = zip(arg.leaves, found.leaves, strict=True)
    return all(
        (arg_types[own].shape, arg_types[own].dtype) == (result_types[other].shape, result_types[other].dtype)
        for own, other in pairs
    )
