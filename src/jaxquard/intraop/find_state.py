"""Which arguments of a step are state: those that it returns again, anywhere in its result.

    step(params, moments, batch) -> (params, moments), loss
    step(state, batch) -> {"state": state, "loss": loss}

An argument is state if some subtree of the result has its structure and types. A single number is not, as a learning
rate has the type of a loss; nor is a single array, unless it is the first argument and the result or an item of it, as
a batch may have the type of what is made of it. Where several arguments or results are alike (a teacher and a student,
weights and their gradients), what the step computes tells which belong together (`update_distance`).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxquard.intraop.update_distance import UpdateDistances

# So many operations count for a leaf that does not follow from that in its place. For each leaf of a tree that comes
# back as it is, hardly less: a step may return the old weights beside the new.
_STRANGER, _UNCHANGED = 10_000, 9999.5
# Of equal ones, the first argument has the first result.
_OUT_OF_ORDER = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subtree:
    """A part of the arguments or of the result.

    Attributes:
        start: where its leaves begin among the flat ones.
        depth: how many containers it stands in.
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
        unclear: first leaves of arguments that are alike, where nothing tells which of them are replaced; the first
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
    weights, are not taken for weights. Arguments and results that are alike are paired so that the least operations
    lead from one to the other; of equal results, the outermost is taken, then the first.

    Args:
        in_tree: structure of the tuple of arguments.
        arg_types: of the flat arguments.
        out_tree: structure of the result.
        result_types: of the flat results.
        distances: how near results are to arguments.
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
            if found.tree == first.tree
            and free.issuperset(found.leaves)
            and _may_replace(first, found)
            and _same_types(first, found, arg_types, result_types)
        ]
        if len(alike) == len(options) == 1:
            costs = np.zeros((1, 1))
        else:
            costs = np.array([[_distance(arg, found, distances) for found in options] for arg in alike])
        chosen = _least_pairs(costs)
        for row, column in chosen:
            arg, found = alike[row], options[column]
            free.difference_update(found.leaves)
            pairs[arg.start : arg.start + len(arg.leaves)] = found.leaves
        # Where all of them have a result, they are in order at least.
        left = set(range(len(alike))).difference(row for row, _ in chosen)
        if not unclear and any(costs[other, column] == costs[row, column] for row, column in chosen for other in left):
            unclear = tuple(arg.start for arg in alike)
    return StatePairs(results=tuple(pairs), unclear=unclear)


def _least_pairs(costs: np.ndarray) -> list[tuple[int, int]]:
    """Rows and columns, each once, as many as there can be, so that they cost least together."""
    if not costs.size:
        return []
    if costs.size == 1:
        return [(0, 0)]
    from scipy.optimize import linear_sum_assignment  # Takes a while to import, and most steps do not need it.

    rows, columns = np.indices(costs.shape)
    found = linear_sum_assignment(costs + _OUT_OF_ORDER * (rows - columns) ** 2)
    return [(int(row), int(column)) for row, column in zip(*found, strict=True)]


def _distance(arg: _Subtree, found: _Subtree, distances: UpdateDistances) -> float:
    """How many operations lead from an argument to what may replace it."""
    steps = [distances.between(own, other) for own, other in zip(arg.leaves, found.leaves, strict=True)]
    if all(step == 0 for step in steps):
        return _UNCHANGED * len(steps)
    return sum(_STRANGER if step is None else step for step in steps)


def _alike(in_tree: Any, arg_types: Sequence[Any]) -> Iterator[list[_Subtree]]:
    """Arguments that may be state, large ones first, those of one form together."""
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
    return one.tree == other.tree and _same_types(one, other, arg_types, arg_types)


def changed_dtype(
    in_tree: Any, arg_types: Sequence[Any], out_tree: Any, result_types: Sequence[Any], pairs: Sequence[int | None]
) -> tuple[int, int] | None:
    """An argument that would be state if its dtypes came back: its first leaf that differs, and that of the result."""
    free = set(range(len(result_types))).difference(pairs)
    for place, arg in _largest_first(in_tree):
        if pairs[arg.start] is not None or _is_data(arg, place, arg_types):
            continue
        for found in _by_depth(out_tree):
            if found.tree == arg.tree and free.issuperset(found.leaves) and _may_replace(arg, found):
                leaves = list(zip(arg.leaves, found.leaves, strict=True))
                if all(arg_types[own].shape == result_types[other].shape for own, other in leaves):
                    return next(pair for pair in leaves if arg_types[pair[0]].dtype != result_types[pair[1]].dtype)
    return None


def _largest_first(in_tree: Any) -> list[tuple[int, _Subtree]]:
    """The arguments that have leaves, with their places."""
    found, start = [], 0
    for place, tree in enumerate(in_tree.children()):
        if tree.num_leaves:
            found.append((place, _Subtree(tree=tree, start=start, depth=0)))
        start += tree.num_leaves
    return sorted(found, key=lambda item: _size(item[1]))


def _size(arg: _Subtree) -> tuple[int, int]:
    """Less for what has more leaves, or else more nodes."""
    return -arg.tree.num_leaves, -arg.tree.num_nodes


def _by_depth(tree: Any) -> list[_Subtree]:
    return sorted(_subtrees(_Subtree(tree=tree, start=0, depth=0)), key=lambda found: found.depth)


def _subtrees(subtree: _Subtree) -> Iterator[_Subtree]:
    """A tree and all that stand in it, in order."""
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
    """Shapes and dtypes: whether a leaf is weakly typed makes no state of it, and no data."""
    pairs = zip(arg.leaves, found.leaves, strict=True)
    return all(
        (arg_types[own].shape, arg_types[own].dtype) == (result_types[other].shape, result_types[other].dtype)
        for own, other in pairs
    )
