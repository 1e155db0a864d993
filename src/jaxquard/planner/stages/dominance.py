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
        block = block[~_is_dominated(ranked[block], ranked[kept])]
        # Rows of a block: only an earlier one can dominate, as they are sorted.
        values = ranked[block]
        pairs = (values[None] <= values[:, None]).all(axis=2)
        block = block[~np.tril(pairs, -1).any(axis=1)]
        kept = np.concatenate([kept, block])
    return order[kept]


def _is_dominated(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    found = np.zeros(len(rows), dtype=bool)
    for start in range(0, len(others), _BLOCK):
        is_smaller = np.all(others[None, start : start + _BLOCK] <= rows[:, None], axis=2)
        found |= is_smaller.any(axis=1)
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
    found = np.argmin(scaled @ _directions(costs.shape[1], 4 * max_rows).T, axis=0)
    _, first = np.unique(found, return_index=True)
    kept = found[np.sort(first)][:max_rows]
    if len(kept) < max_rows:
        others = np.setdiff1d(np.arange(len(costs)), kept)
        others = others[np.argsort(costs[others, 0], kind="stable")]
        places = np.linspace(0, len(others) - 1, max_rows - len(kept)).round().astype(np.int64)
        kept = np.concatenate([kept, others[np.unique(places)]])
    return np.sort(kept)


@functools.cache
def _directions(num_dims: int, num_directions: int) -> np.ndarray:
    """Returns weights of dims: each alone, then spread ones, the same each time."""
    spread = np.random.default_rng(0).dirichlet(np.full(num_dims, 0.5), num_directions)
    return np.vstack([np.eye(num_dims) + 1e-6, spread])
