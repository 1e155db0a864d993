"""The smallest load that the largest stage can have, where segments cannot be divided: a bound on every assignment."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

# The bound is this near to the smallest load, over the largest segment's.
_NUM_HALVINGS = 10


def bound_largest_load_s(
    loads_s: Float[np.ndarray, " segments"], begins: Int[np.ndarray, " begins"], num_stages: int
) -> float:
    """Returns a bound from below on the largest load of a stage.

    Args:
        loads_s: bounds on the loads of segments.
        begins: the segments with which stages may begin, 0 first.
        num_stages: at most as many as begins.
    """
    parts_s = np.add.reduceat(loads_s, begins)
    largest_s = float(parts_s.max())
    low_s = max(largest_s, float(parts_s.sum()) / num_stages)
    ends_s = [0.0, *np.cumsum(parts_s).tolist()]
    # A stage that takes as much as it may leaves less than one part of an equal share.
    high_s = low_s + largest_s
    if _is_enough(ends_s, num_stages, low_s):
        return low_s
    for _ in range(_NUM_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if _is_enough(ends_s, num_stages, middle_s):
            high_s = middle_s
        else:
            low_s = middle_s
    return low_s


def _is_enough(ends_s: Sequence[float], num_stages: int, load_s: float) -> bool:
    """Says whether stages of at most this load take all parts: each takes as many as it may."""
    place, last = 0, len(ends_s) - 1
    for _ in range(num_stages):
        place = bisect_right(ends_s, ends_s[place] + load_s * (1 + 1e-9)) - 1
        if place >= last:
            return True
    return False
