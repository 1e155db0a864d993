"""Pareto frontiers of rows of costs: of all rows, or of each group of them."""

import numpy as np
from jaxtyping import Float, Int

# Rows compared with one another at once.
_BLOCK = 256


def undominated(costs: Float[np.ndarray, "rows dims"]) -> Int[np.ndarray, " kept"]:
    """Returns the rows that no other is at most as large as in all dims, in lexicographic order; of equal ones one."""
    order = np.lexsort(costs.T[::-1])
    ranked = costs[order]
    if costs.shape[1] <= 2 or len(order) < 2:
        # A later row is at least as large in the first dim.
        is_kept = np.ones(len(order), dtype=bool)
        is_kept[1:] = ranked[1:, -1] < np.minimum.accumulate(ranked[:, -1])[:-1]
        return order[is_kept]
    kept = np.arange(0)
    for start in range(0, len(order), _BLOCK):
        block = np.arange(start, min(start + _BLOCK, len(order)))
        block = block[~_are_smaller(ranked[block], ranked[kept]).any(axis=1)]
        # Only an earlier row of the block can dominate, as they are sorted.
        is_dominated = np.tril(_are_smaller(ranked[block], ranked[block]), k=-1).any(axis=1)
        kept = np.concatenate([kept, block[~is_dominated]])
    return order[kept]


def _are_smaller(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns for each row which others are at most as large in all dims but the first, in which they are sorted."""
    found = others[None, :, 1] <= rows[:, None, 1]
    for dim in range(2, rows.shape[1]):
        found &= others[None, :, dim] <= rows[:, None, dim]
    return found


def undominated_pairs(
    groups: Int[np.ndarray, " rows"], first: Float[np.ndarray, " rows"], second: Float[np.ndarray, " rows"]
) -> Int[np.ndarray, " kept"]:
    """Returns the undominated rows of each group, by group and rising first cost; of equal ones one."""
    order = np.lexsort((second, first, groups))
    groups = groups[order]
    # The running minimum starts anew with each group: ranks, so that nothing is rounded, and later groups below.
    ranks = np.unique(second, return_inverse=True)[1][order].astype(np.int64)
    ranks -= np.cumsum(np.diff(groups, prepend=groups[:1]) != 0) * (len(order) + 1)
    is_kept = np.ones(len(order), dtype=bool)
    is_kept[1:] = ranks[1:] < np.minimum.accumulate(ranks)[:-1]
    return order[is_kept]
