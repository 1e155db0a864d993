"""The prices of a segment's strategies, as numbers alone: the input of the search.

A strategy meets its neighbours only through its entry and exit layouts, so of two strategies with the same layouts a
dominated one can be left out of every plan: `trim_chain` does so, and drops what has no price.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxquard.errors import ShardingError
from jaxquard.intraop.search.frontier import pareto_order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedSegment:
    """A segment at its place in the chain, with the prices of its strategies.

    Attributes:
        times_s: per strategy; infinite for one without a price.
        sizes_bytes: memory that each strategy adds.
        entries: per strategy, which of the entry layouts it has.
        exits: which of the exit layouts.
        reshards_s: from each exit layout of the segment before to each entry layout of this one; infinite where it
            cannot be done, None for the first segment.
    """

    times_s: tuple[float, ...]
    sizes_bytes: tuple[int, ...]
    entries: tuple[int, ...]
    exits: tuple[int, ...]
    reshards_s: Float[np.ndarray, "previous_exits entries"] | None = None

    def __post_init__(self) -> None:
        assert len(self.times_s) == len(self.sizes_bytes) == len(self.entries) == len(self.exits) > 0
        assert all(time_s >= 0 for time_s in self.times_s), "a time is at least 0, or infinite"
        assert min(*self.sizes_bytes, *self.entries, *self.exits) >= 0
        if self.reshards_s is not None:
            assert (self.reshards_s >= 0).all(), "a reshard takes at least 0, or infinitely long"
            assert max(self.entries) < self.reshards_s.shape[1], "a column of reshards for each entry layout"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrimmedSegment:
    """The strategies of a segment that no other dominates.

    Attributes:
        strategies: their indices in the `PricedSegment`.
        starts_s: reshard and then run each, from each exit layout of the segment before.
        num_exits: the exit layouts, used or not.
    """

    strategies: Int[np.ndarray, " strategies"]
    times_s: Float[np.ndarray, " strategies"]
    sizes_bytes: Int[np.ndarray, " strategies"]
    entries: Int[np.ndarray, " strategies"]
    exits: Int[np.ndarray, " strategies"]
    reshards_s: Float[np.ndarray, "previous_exits entries"]
    starts_s: Float[np.ndarray, "previous_exits strategies"]
    num_exits: int


def trim_chain(chain: Sequence[PricedSegment]) -> tuple[TrimmedSegment, ...]:
    """Returns the chain without dominated strategies; a segment object that recurs is trimmed once.

    Raises:
        ShardingError: no plan has finite prices throughout.
    """
    assert chain, "a chain has at least one segment"
    assert sum(max(segment.sizes_bytes) for segment in chain) < 2**60, "the sum of the sizes fits in 64 bits"
    trimmed: dict[tuple[int, int], TrimmedSegment] = {}
    segments = []
    num_exits = 1
    for place, segment in enumerate(chain):
        assert (segment.reshards_s is None) == (place == 0), "every segment but the first has reshards"
        key = (id(segment), num_exits)
        if key not in trimmed:
            trimmed[key] = _trim(segment, num_exits)
        segments.append(trimmed[key])
        num_exits = segments[-1].num_exits
    _check_reachable(segments)
    return tuple(segments)


def _trim(segment: PricedSegment, num_previous_exits: int) -> TrimmedSegment:
    """Returns the strategies of a segment that no other dominates, after a segment of so many exit layouts."""
    reshards_s = segment.reshards_s
    if reshards_s is None:
        reshards_s = np.zeros((1, max(segment.entries) + 1))
    assert len(reshards_s) >= num_previous_exits, "a row of reshards for each exit layout of the segment before"
    reshards_s = np.asarray(reshards_s, dtype=np.float64)[:num_previous_exits]
    times_s = np.array(segment.times_s, dtype=np.float64)
    sizes_bytes = np.array(segment.sizes_bytes, dtype=np.int64)
    entries, exits = np.array(segment.entries), np.array(segment.exits)
    kept = [np.arange(0)]
    for entry, exit_ in sorted(set(zip(segment.entries, segment.exits, strict=True))):
        (group,) = np.nonzero((entries == entry) & (exits == exit_) & np.isfinite(times_s))
        kept.append(group[pareto_order(times_s[group], sizes_bytes[group])])
    strategies = np.concatenate(kept)
    return TrimmedSegment(
        strategies=strategies,
        times_s=times_s[strategies],
        sizes_bytes=sizes_bytes[strategies],
        entries=entries[strategies],
        exits=exits[strategies],
        reshards_s=reshards_s,
        starts_s=reshards_s[:, entries[strategies]] + times_s[strategies],
        num_exits=max(segment.exits) + 1,
    )


def _check_reachable(segments: Sequence[TrimmedSegment]) -> None:
    is_reached = np.array([True])
    for place, segment in enumerate(segments):
        if not len(segment.strategies):
            raise ShardingError(
                f"segment {place} of {len(segments)} needs a strategy with a finite time, but all of them failed."
            )
        into = np.isfinite(segment.starts_s[is_reached]).any(axis=0)
        is_reached = np.zeros(segment.num_exits, dtype=bool)
        is_reached[segment.exits[into]] = True
        if not is_reached.any():
            raise ShardingError(
                f"segment {place} of {len(segments)} cannot be entered: every reshard from segment {place - 1} to it "
                "failed."
            )
