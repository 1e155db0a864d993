"""The exact search on the chain of segments (CFP, section 4.4).

Minimises equation (8), the times of the segments and of the reshards between neighbours, under (9), the sum of the
sizes; each segment chooses for itself, equal ones too. The paper does not say how it searches. Here, in three steps:

1. Relaxed searches give lines below the frontier of time against memory, and plans on it (`relaxation`).
2. A band above the line that is highest at the limit is searched whole (`band`). It starts with no width, and is
   widened until it holds everything that could be faster than the fastest plan found: that plan is then the best.
3. The rest of the frontier comes the same way, with bands along all of it, until no gap between neighbouring plans
   reaches out of them. Their number is limited, as a frontier can have millions of points; the best never is.

With a memory limit this is a knapsack, so prices exist that defeat any exact search: many strategies whose times fall
by exactly so much a byte. Step 2 then gives up its proof, and `Frontier.gap_s` says what is left open.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxquard.errors import InfeasibleShardingError
from jaxquard.intraop.search.band import Band, search_band
from jaxquard.intraop.search.frontier import Frontier, FrontierPoint, merge_points, thin_points
from jaxquard.intraop.search.priced_segment import PricedSegment, TrimmedSegment, trim_chain
from jaxquard.intraop.search.relaxation import Relaxed, minimum_sizes, relax_between, relax_to_limit

# Partial plans kept at a segment: for the proof of the best, and for each point of the frontier that is asked for.
_MAX_PARTIALS = 200_000
_PARTIALS_PER_POINT = 20
# Lines along the frontier; more cost more at each segment and let narrower bands do.
_MAX_LINES = 32
# After a band of no width, one this much narrower than what is left open, then each so much wider than the last.
_FIRST_WIDTH = 1 / 1024
_WIDER = 4
# Where bands along the frontier hold too many partial plans, narrower ones are tried, so many times.
_NARROWER = 1 / 8
_MAX_FAILURES = 3


def search_chain(chain: Sequence[PricedSegment], *, memory_limit_bytes: int | None, max_points: int = 300) -> Frontier:
    """Finds the fastest plan within the limit, and the Pareto frontier of time against memory below the limit.

    Args:
        memory_limit_bytes: on the sum of the sizes; None for no limit.
        max_points: on the frontier; 1 asks for the best alone, and is quicker.

    Raises:
        InfeasibleShardingError: nothing fits; the message says the minimum memory that would.
    """
    assert max_points >= 1
    segments = trim_chain(chain)
    rests_bytes = minimum_sizes(segments)
    minimum_bytes = int(rests_bytes[0][0])
    if memory_limit_bytes is not None and minimum_bytes > memory_limit_bytes:
        raise InfeasibleShardingError(
            f"memory_limit_bytes={memory_limit_bytes} ({_gib(memory_limit_bytes)}) is too little: of all strategies of "
            f"all segments, those of minimum memory need {minimum_bytes} bytes ({_gib(minimum_bytes)}). Raise "
            "the limit to at least that, use more devices, or a smaller batch."
        )
    largest_bytes = sum(int(segment.sizes_bytes.max()) for segment in segments)
    limit_bytes = largest_bytes if memory_limit_bytes is None else min(largest_bytes, memory_limit_bytes)
    return _ChainSearch(segments, rests_bytes, limit_bytes).frontier(max_points)


class _ChainSearch:
    """One search: its chain and its limit."""

    def __init__(
        self, segments: Sequence[TrimmedSegment], rests_bytes: Sequence[Int[np.ndarray, " exits"]], limit_bytes: int
    ) -> None:
        self.segments, self.rests_bytes, self.limit_bytes = segments, rests_bytes, limit_bytes

    def frontier(self, max_points: int) -> Frontier:
        smallest = self._smallest()
        relaxed, fast = relax_to_limit(self.segments, smallest, self.limit_bytes)
        best, gap_s = self._best(relaxed, fast)
        if max_points == 1 or best.size_bytes <= smallest.size_bytes:
            return Frontier(points=(best,), is_thinned=best.size_bytes > smallest.size_bytes, gap_s=gap_s)
        lines = [relaxed, *relax_between(self.segments, best, smallest, max_tries=_MAX_LINES)]
        points, is_whole = self._fill(lines, (best, smallest), max_points)
        is_thinned = not is_whole or len(points) > max_points
        return Frontier(points=thin_points(points, max_points), is_thinned=is_thinned, gap_s=gap_s)

    def _search(self, bands: Sequence[Band], **options: Any) -> tuple[tuple[FrontierPoint, ...], bool]:
        options = {"limit_bytes": self.limit_bytes, "max_partials": _MAX_PARTIALS, **options}
        return search_band(self.segments, bands, rests_bytes=self.rests_bytes, **options)

    def _smallest(self) -> FrontierPoint:
        """Returns the fastest plan of minimum memory; with so low a limit, one partial plan is left per layout."""
        (point,), _ = self._search((), limit_bytes=int(self.rests_bytes[0][0]))
        return point

    def _best(self, relaxed: Relaxed, fast: FrontierPoint) -> tuple[FrontierPoint, float]:
        """Returns the fastest plan within the limit, and by how much another might be faster."""
        best, width_s = fast, 0.0
        while True:
            band = Band(relaxed=relaxed, width_s=width_s)
            points, is_whole = self._search((band,))
            best = merge_points((best, *points))[0]
            open_s = relaxed.excess_s(best.time_s, self.limit_bytes)
            if open_s <= band.reach_s or not is_whole:
                return best, 0.0 if is_whole else open_s
            width_s = min(open_s, max(width_s * _WIDER, open_s * _FIRST_WIDTH))

    def _fill(
        self, lines: Sequence[Relaxed], points: tuple[FrontierPoint, ...], max_points: int
    ) -> tuple[tuple[FrontierPoint, ...], bool]:
        """Returns the frontier between the best and the smallest, and whether it is whole."""
        points = merge_points((*points, *(line.point for line in lines if line.point.size_bytes <= self.limit_bytes)))
        done_s = widths_s = np.zeros(len(lines))
        num_failures = 0
        while len(points) <= max_points and num_failures < _MAX_FAILURES:
            bands = [Band(relaxed=line, width_s=width) for line, width in zip(lines, widths_s.tolist(), strict=True)]
            found, is_whole = self._search(bands, max_partials=_PARTIALS_PER_POINT * max_points, gives_up=True)
            if not is_whole:
                num_failures += 1
                widths_s = done_s + (widths_s - done_s) * _NARROWER
                continue
            points = merge_points((*points, *found))
            open_s = _open_widths(lines, points)
            if (open_s <= [band.reach_s for band in bands]).all():
                return points, True
            done_s = widths_s
            widths_s = np.maximum(done_s, np.minimum(open_s, np.maximum(done_s * _WIDER, open_s * _FIRST_WIDTH)))
        return points, False


def _open_widths(lines: Sequence[Relaxed], points: Sequence[FrontierPoint]) -> np.ndarray:
    """Returns the width of each line's band at which no point can hide between two neighbours.

    A hidden point is faster than the slower of the two and smaller than the larger: that corner must be in a band,
    and it is left to the line that is nearest.
    """
    times_s = np.array([point.time_s for point in points[1:]])
    sizes_bytes = np.array([point.size_bytes for point in points[:-1]])
    multipliers = np.array([line.multiplier_s_per_byte for line in lines])
    minima_s = np.array([line.minimum_s for line in lines])
    excess_s = times_s + np.outer(multipliers, sizes_bytes) - minima_s[:, None]
    nearest = excess_s.argmin(axis=0)
    widths_s = np.zeros(len(lines))
    np.maximum.at(widths_s, nearest, excess_s.min(axis=0))
    return widths_s


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**27 else f"{size_bytes / 2**20:.2f} MiB"
