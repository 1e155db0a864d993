"""Lower bounds by Lagrangian relaxation of the memory limit: memory costs a multiplier, in seconds a byte.

For any multiplier, the minimum of time + multiplier x bytes over all plans is found by one walk along the chain, and no
plan lies below that line in the plane of bytes and seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxquard.intraop.search.frontier import FrontierPoint
from jaxquard.intraop.search.priced_segment import TrimmedSegment

# Stands for "no plan" among sizes; twice it still fits in 64 bits.
_IMPOSSIBLE_BYTES = 2**61


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

    def latest_s(
        self, place: int, exit_: int, sizes_bytes: Int[np.ndarray, " plans"], *, width_s: float
    ) -> Float[np.ndarray, " plans"]:
        """Returns when partial plans of these sizes must have passed `place` to end at most `width_s` above the line.

        The line is given room for twice the rounding, as sums of another order are compared with it.
        """
        end_s = (self.minimum_s + width_s) * (1 + 2 * self.rounding) - self.rests_s[place][exit_]
        return end_s - self.multiplier_s_per_byte * sizes_bytes


def relax(segments: Sequence[TrimmedSegment], multiplier_s_per_byte: float) -> Relaxed:
    """Solves the relaxed problem: the minimum of time + multiplier x bytes."""
    rests_s = [np.zeros(segments[-1].num_exits)]
    picks = []
    for segment in reversed(segments):
        after_s = multiplier_s_per_byte * segment.sizes_bytes + rests_s[-1][segment.exits]
        totals_s = segment.starts_s + after_s
        picks.append(totals_s.argmin(axis=1))
        rests_s.append(totals_s.min(axis=1))
    time_s, size_bytes, layout, choices = 0.0, 0, 0, []
    for segment, pick in zip(segments, reversed(picks), strict=True):
        chosen = int(pick[layout])
        reshard_s = float(segment.reshards_s[layout, segment.entries[chosen]])
        time_s = (time_s + reshard_s) + float(segment.times_s[chosen])
        size_bytes += int(segment.sizes_bytes[chosen])
        layout = int(segment.exits[chosen])
        choices.append(int(segment.strategies[chosen]))
    point = FrontierPoint(time_s=time_s, size_bytes=size_bytes, choices=tuple(choices))
    return Relaxed(multiplier_s_per_byte=multiplier_s_per_byte, rests_s=tuple(rests_s[::-1]), point=point)


def minimum_sizes(segments: Sequence[TrimmedSegment]) -> tuple[Int[np.ndarray, " exits"], ...]:
    """Returns the minimum memory from each segment on, per exit layout of the segment before; huge for no plan."""
    rests_bytes = [np.zeros(segments[-1].num_exits, dtype=np.int64)]
    for segment in reversed(segments):
        totals_bytes = segment.sizes_bytes + rests_bytes[-1][segment.exits]
        entered_bytes = np.where(np.isfinite(segment.starts_s), totals_bytes, _IMPOSSIBLE_BYTES)
        rests_bytes.append(np.minimum(entered_bytes.min(axis=1), _IMPOSSIBLE_BYTES))
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
        multiplier = max(0.0, small.time_s - large.time_s) / (large.size_bytes - small.size_bytes)
        relaxed = relax(segments, multiplier)
        if relaxed.excess_s(small.time_s, small.size_bytes) <= relaxed.rounding * relaxed.minimum_s:
            return relaxed, small
        if relaxed.point.size_bytes <= limit_bytes:
            small = relaxed.point
        else:
            large = relaxed.point
