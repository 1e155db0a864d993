"""Bounds what a plan can gain by a strategy or a reshard, from the coarse prices of a chain of segments.

The fastest plan with a strategy at its place is found for all of them by two walks along the chain, one from each end:

    through s  =  best up to the entry of s  +  s  +  best from the exit of s

A strategy that is fast by itself, but whose neighbours then have to reshard, is seen to lose; so is a reshard that no
good plan needs. What such a plan loses is given as a share of the fastest strategy of the segment: coarse prices of one
segment may be wrong by a factor, and the plan can gain no more than that.
"""

from collections.abc import Sequence

import numpy as np

from jaxquard.intraop.search.priced_segment import PricedSegment


class PlanBounds:
    """The times of the fastest plans through every strategy and every reshard of a chain."""

    def __init__(self, chain: Sequence[PricedSegment]) -> None:
        self._chain = chain
        before = [np.zeros(1)]
        for segment in chain:
            before.append(_minimum(_arrive(segment, before[-1]), segment.exits))
        after = [np.zeros(len(before[-1]))]
        for segment in reversed(chain):
            ends_s = np.array(segment.times_s) + after[-1][list(segment.exits)]
            after.append((_reshards(segment) + _minimum(ends_s, segment.entries)).min(axis=1))
        self._before, self._after = before, after[::-1]

    @property
    def minimum_s(self) -> float:
        """The time of the fastest plan."""
        return float(self._after[0][0])

    def strategy_slacks(self, place: int) -> np.ndarray:
        """Returns for each strategy of a segment what the fastest plan with it loses."""
        segment = self._chain[place]
        through_s = _arrive(segment, self._before[place]) + self._after[place + 1][list(segment.exits)]
        return (through_s - self.minimum_s) / self._scale_s(place)

    def reshard_slacks(self, place: int) -> np.ndarray:
        """Returns what the fastest plan with it loses, for each layout before a segment, and each in which it enters.

        The smaller of the segments on both sides is the measure.
        """
        segment = self._chain[place]
        ends_s = np.array(segment.times_s) + self._after[place + 1][list(segment.exits)]
        through_s = self._before[place][:, None] + _reshards(segment) + _minimum(ends_s, segment.entries)
        return (through_s - self.minimum_s) / min(self._scale_s(place - 1), self._scale_s(place))

    def _scale_s(self, place: int) -> float:
        return max(min(self._chain[place].times_s), np.finfo(float).tiny)


def _arrive(segment: PricedSegment, before_s: np.ndarray) -> np.ndarray:
    """Returns the minimum time after each strategy of a segment."""
    entered_s = (before_s[:, None] + _reshards(segment)).min(axis=0)
    return entered_s[list(segment.entries)] + np.array(segment.times_s)


def _reshards(segment: PricedSegment) -> np.ndarray:
    return np.zeros((1, max(segment.entries) + 1)) if segment.reshards_s is None else np.asarray(segment.reshards_s)


def _minimum(times_s: np.ndarray, layouts: Sequence[int]) -> np.ndarray:
    """Returns for each layout the minimum of the strategies that have it."""
    found = np.full(max(layouts) + 1, np.inf)
    np.minimum.at(found, list(layouts), times_s)
    return found
