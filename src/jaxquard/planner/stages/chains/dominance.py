"""Pareto frontiers of rows of costs: of all rows, or of each group of them; and a few rows that stand for many."""

import functools

import numpy as np
from jaxtyping import Float, Int

# Pairs of so many rows are compared at once.
_BLOCK = 256


def undominated(costs: Float[np.ndarray, "rows dims"]) -> Int[np.ndarray, " kept"]:
    """Returns the rows that no other is at most as large as in all dims, in lexicographic order; of equal ones one."""
    order = np.lexsort(costs.T[::-1])
    if costs.shape[1] == 1 or len(order) < 2:
        return order[:1]
    ranked = costs[order]
    if costs.shape[1] == 2:
        # A later row is at least as large in the first dim.
        is_kept = np.ones(len(order), dtype=bool)
        is_kept[1:] = ranked[1:, 1] < np.minimum.accumulate(ranked[:, 1])[:-1]
        return order[is_kept]
    kept = np.arange(0)
    for start in range(0, len(order), _BLOCK):
        block = np.arange(start, min(start + _BLOCK, len(order)))
        if len(kept):
            block = block[~_is_dominated(ranked[block], ranked[kept])]
        # Rows of a block: only an earlier one can dominate, as they are sorted.
        values = ranked[block]
        pairs = _are_smaller(values, values, is_ranked=True)
        pairs &= _earlier_rows(_BLOCK)[: len(block), : len(block)]
        block = block[~pairs.any(axis=1)]
        kept = np.concatenate([kept, block]) if len(kept) else block
    return order[kept]


@functools.cache
def _earlier_rows(num_rows: int) -> np.ndarray:
    return np.tri(num_rows, k=-1, dtype=bool)


def _are_smaller(rows: np.ndarray, others: np.ndarray, *, is_ranked: bool = False) -> np.ndarray:
    """Returns for each row which others are at most as large in all dims; column by column, which is quicker.

    Args:
        is_ranked: the first dim is not compared, as the rows that matter are in its order.
    """
    first = 1 if is_ranked else 0
    found = others[None, :, first] <= rows[:, None, first]
    for dim in range(first + 1, rows.shape[1]):
        found &= others[None, :, dim] <= rows[:, None, dim]
    return found


def _is_dominated(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    found = np.zeros(len(rows), dtype=bool)
    for start in range(0, len(others), _BLOCK):
        found |= _are_smaller(rows, others[start : start + _BLOCK]).any(axis=1)
    return found


def undominated_pairs(
    groups: Int[np.ndarray, " rows"], first: Float[np.ndarray, " rows"], second: Float[np.ndarray, " rows"]
) -> Int[np.ndarray, " kept"]:
    """Returns the undominated rows of each group, by group and rising first cost; of equal ones one."""
    order = np.lexsort((second, first, groups))
    groups = groups[order]
    # The running minimum starts anew with each group: ranks, so that nothing is rounded, and later groups below.
    ranks = np.unique(second, return_inverse=True)[1][order].astype(np.int64)
    place = np.cumsum(np.append(0, groups[1:] != groups[:-1])) if len(groups) else groups
    ranks -= place * (len(order) + 1)
    is_kept = np.ones(len(order), dtype=bool)
    is_kept[1:] = ranks[1:] < np.minimum.accumulate(ranks)[:-1]
    return order[is_kept]


def representatives(costs: Float[np.ndarray, "rows dims"], max_rows: int) -> Int[np.ndarray, " kept"]:
    """Returns at most so many rows: the minima of weighted sums of the dims, each dim alone among them.

    Sums of rows on the lower convex hull are what a Lagrangian relaxation finds, so that these serve sums best.
    """
    if len(costs) <= max_rows:
        return np.arange(len(costs))
    low, high = costs.min(axis=0), costs.max(axis=0)
    scaled = (costs - low) / np.where(high > low, high - low, 1.0)
    found = np.argmin(_directions(costs.shape[1], 4 * max_rows) @ scaled.T, axis=1)
    kept = np.asarray(list(dict.fromkeys(found.tolist()))[:max_rows])
    if len(kept) < max_rows:
        is_left = np.ones(len(costs), dtype=bool)
        is_left[kept] = False
        others = np.flatnonzero(is_left)
        others = others[np.argsort(costs[others, 0], kind="stable")]
        places = np.linspace(0, len(others) - 1, max_rows - len(kept)).round().astype(np.int64)
        kept = np.concatenate([kept, others[np.unique(places)]])
    return np.sort(kept)


@functools.cache
def _directions(num_dims: int, num_directions: int) -> np.ndarray:
    """Returns weights of dims: each alone, then spread ones, the same each time."""
    spread = np.random.default_rng(0).dirichlet(np.full(num_dims, 0.5), num_directions)
    return np.vstack([np.eye(num_dims) + 1e-6, spread])
