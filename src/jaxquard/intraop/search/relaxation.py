"""Bounds on the frontier by Lagrangian relaxation of the memory limit: a multiplier of so many seconds a byte.

For any multiplier, the minimum of time + multiplier x bytes over all plans is found by one walk along the chain, and no
plan lies below that line in the plane of bytes and seconds. The lines bound the true frontier from below; the plans on
them (`Relaxed.point`) are on it.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxquard.intraop.search.frontier import FrontierPoint
from jaxquard.intraop.search.priced_segment import TrimmedSegment

# Stands for "no plan" among sizes; twice it still fits in 64 bits.
IMPOSSIBLE_BYTES = 2**61


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxed:
    """The solution of the relaxed problem for one multiplier.

    Attributes:
        multiplier_s_per_byte: of the memory limit.
        rests_s: the minimum of time + multiplier x bytes from each segment on, per exit layout of the segment before;
            one more for the end of the chain.
        point: a plan that reaches the minimum.
    """

    multiplier_s_per_byte: float
    rests_s: tuple[Float[np.ndarray, " exits"], ...]
    point: FrontierPoint

    @property
    def minimum_s(self) -> float:
        """The minimum of time + multiplier x bytes over all plans."""
        return float(self.rests_s[0][0])

    @property
    def rounding(self) -> float:
        """A bound on the relative error that the order of addition makes in a sum of this length."""
        return 16 * float(np.finfo(np.float64).eps) * len(self.rests_s)

    def excess_s(self, time_s: float, size_bytes: float) -> float:
        """Returns the distance of a time and a size above the line of this solution."""
        return time_s + self.multiplier_s_per_byte * size_bytes - self.minimum_s


def relax(segments: Sequence[TrimmedSegment], multiplier_s_per_byte: float) -> Relaxed:
    """Solves the relaxed problem: the minimum of time + multiplier x bytes."""
    rests_s = [np.zeros(segments[-1].num_exits)]
    picks = []
    for segment in reversed(segments):
        after_s = multiplier_s_per_byte * segment.sizes_bytes + rests_s[-1][segment.exits]
        totals_s = segment.starts_s + after_s
        picks.append(totals_s.argmin(axis=1))
        rests_s.append(totals_s[np.arange(len(totals_s)), picks[-1]])
    point = _walk(segments, picks[::-1])
    return Relaxed(multiplier_s_per_byte=multiplier_s_per_byte, rests_s=tuple(rests_s[::-1]), point=point)


def _walk(segments: Sequence[TrimmedSegment], picks: Sequence[Int[np.ndarray, " exits"]]) -> FrontierPoint:
    time_s, size_bytes, layout, choices = 0.0, 0, 0, []
    for segment, pick in zip(segments, picks, strict=True):
        chosen = int(pick[layout])
        entry = int(segment.entries[chosen])
        time_s = (time_s + float(segment.reshards_s[layout, entry])) + float(segment.times_s[chosen])
        size_bytes += int(segment.sizes_bytes[chosen])
        layout = int(segment.exits[chosen])
        choices.append(int(segment.strategies[chosen]))
    return FrontierPoint(time_s=time_s, size_bytes=size_bytes, choices=tuple(choices))


def minimum_sizes(segments: Sequence[TrimmedSegment]) -> tuple[Int[np.ndarray, " exits"], ...]:
    """Returns the minimum memory from each segment on, per exit layout of the segment before.

    It is `IMPOSSIBLE_BYTES` where there is no plan.
    """
    rests_bytes = [np.zeros(segments[-1].num_exits, dtype=np.int64)]
    for segment in reversed(segments):
        totals_bytes = segment.sizes_bytes + rests_bytes[-1][segment.exits]
        entered_bytes = np.where(np.isfinite(segment.starts_s), totals_bytes, IMPOSSIBLE_BYTES)
        rests_bytes.append(np.minimum(entered_bytes.min(axis=1), IMPOSSIBLE_BYTES))
    return tuple(rests_bytes[::-1])


def relax_to_limit(
    segments: Sequence[TrimmedSegment], smallest: FrontierPoint, limit_bytes: int
) -> tuple[Relaxed, FrontierPoint]:
    """Returns the relaxed search whose bound is highest at the limit, and a fast plan within the limit.

    Its line goes through two plans, one on either side of the limit; each try moves one of them.

    Args:
        smallest: a plan within the limit.
    """
    relaxed = relax(segments, 0.0)
    large, small = relaxed.point, smallest
    if large.size_bytes <= limit_bytes:
        return relaxed, large
    while True:
        relaxed = relax(segments, _multiplier_between(large, small))
        if not _is_below(relaxed, small):
            return relaxed, small
        if relaxed.point.size_bytes <= limit_bytes:
            small = relaxed.point
        else:
            large = relaxed.point


def relax_between(
    segments: Sequence[TrimmedSegment], large: FrontierPoint, small: FrontierPoint, *, max_tries: int
) -> list[Relaxed]:
    """Returns relaxed searches whose lines follow the frontier between two of its plans, the widest gaps first."""
    found: list[Relaxed] = []
    gaps = [_gap(large, small)]
    while gaps and len(found) < max_tries:
        _, large, small = heapq.heappop(gaps)
        if small.size_bytes >= large.size_bytes or small.time_s <= large.time_s:
            continue
        relaxed = relax(segments, _multiplier_between(large, small))
        found.append(relaxed)
        if _is_below(relaxed, small):
            heapq.heappush(gaps, _gap(large, relaxed.point))
            heapq.heappush(gaps, _gap(relaxed.point, small))
    return found


def _gap(large: FrontierPoint, small: FrontierPoint) -> tuple[float, FrontierPoint, FrontierPoint]:
    return -(small.time_s - large.time_s) * (large.size_bytes - small.size_bytes), large, small


def _multiplier_between(large: FrontierPoint, small: FrontierPoint) -> float:
    return max(0.0, small.time_s - large.time_s) / (large.size_bytes - small.size_bytes)


def _is_below(relaxed: Relaxed, point: FrontierPoint) -> bool:
    return relaxed.excess_s(point.time_s, point.size_bytes) > relaxed.rounding * relaxed.minimum_s
