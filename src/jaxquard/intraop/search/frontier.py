"""The Pareto frontier of time against memory: plans that no other dominates, that is, beats in both."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FrontierPoint:
    """A plan for the whole chain.

    Attributes:
        time_s: of all segments and the reshards between them, added up from the first to the last.
        size_bytes: of all segments.
        choices: the strategy of each segment.
    """

    time_s: float
    size_bytes: int
    choices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Plans of falling memory, from the fastest within the limit to the smallest.

    Attributes:
        points: each slower than the one before, and smaller. The first and the last are exact. Between them are
            samples: a chain of few strategies has all its points, a long one has plans close to the true frontier.
        gap_s: by how much a plan within the limit might be faster than `best`: 0.0, as `best` is proven, unless the
            prices are so degenerate that the proof was given up.
    """

    points: tuple[FrontierPoint, ...]
    gap_s: float = 0.0

    @property
    def best(self) -> FrontierPoint:
        """The fastest plan within the limit; the smallest of these if there are several."""
        return self.points[0]

    @property
    def smallest(self) -> FrontierPoint:
        """The plan of minimum memory."""
        return self.points[-1]


def pareto_order(
    times_s: Float[np.ndarray, " points"], sizes_bytes: Int[np.ndarray, " points"]
) -> Int[np.ndarray, " kept"]:
    """Returns the points that no other dominates, by rising size and falling time; of equal points the first."""
    order = np.lexsort((times_s, sizes_bytes))
    sorted_s = times_s[order]
    is_kept = np.ones(len(order), dtype=bool)
    is_kept[1:] = sorted_s[1:] < np.minimum.accumulate(sorted_s)[:-1]
    return order[is_kept]


def merge_points(points: Iterable[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """Returns the points that no other dominates, from the fastest to the smallest."""
    merged: list[FrontierPoint] = []
    for point in sorted(points):
        if not merged or point.size_bytes < merged[-1].size_bytes:
            merged.append(point)
    return tuple(merged)
