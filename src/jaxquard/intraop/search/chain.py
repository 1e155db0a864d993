"""The exact search on the chain of segments (CFP, section 4.4).

Minimises equation (8), the times of the segments and of the reshards between neighbours, under (9), the sum of the
sizes; each segment chooses for itself, equal ones too. The paper does not say how it searches. Here:

1. Relaxed searches give a line below all plans that is highest at the limit, and a fast plan (`relaxation`).
2. One walk along the chain keeps, at each segment and exit layout, the partial plans that no other dominates and that
   may still end within the limit and a band above that line. The band starts with no width, and is widened until it
   holds everything that could be faster than the fastest plan found: that plan is then the best.
3. The frontier for the chart is sampled: one more walk, without a band, which thins the partial plans.

With a memory limit this is a knapsack, so prices exist that defeat any exact search: many strategies whose times fall
by exactly so much a byte. Step 2 then gives up its proof, and `Frontier.gap_s` says what is left open.

A longer sum of floats never turns two sums around (rounding is monotone), so dominance is exact for times added from
the first segment to the last. The band alone compares sums of different order, and is wider by the rounding.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int

from jaxquard.errors import InfeasibleShardingError, ShardingError
from jaxquard.intraop.search.frontier import Frontier, FrontierPoint, merge_points, pareto_order
from jaxquard.intraop.search.priced_segment import PricedSegment, TrimmedSegment, trim_chain
from jaxquard.intraop.search.relaxation import Relaxed, minimum_sizes, relax, relax_to_limit

# Partial plans kept at a segment: for the proof of the best, and for the samples of the frontier.
_MAX_PARTIALS = 200_000
_SAMPLED_PARTIALS = 2000
# After a band of no width, one this much narrower than what is left open, then each so much wider than the last.
_FIRST_WIDTH = 1 / 1024
_WIDER = 4
# A partial plan up to a segment, with its parent in the step before and its choice.
_PARTIAL = np.dtype([("time_s", "f8"), ("size_bytes", "i8"), ("exit", "i8"), ("parent", "i8"), ("chosen", "i8")])


def search_chain(chain: Sequence[PricedSegment], *, memory_limit_bytes: int | None, max_points: int = 300) -> Frontier:
    """Finds the fastest plan within the limit, and samples the Pareto frontier of time against memory below the limit.

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
            f"memory_limit_bytes={memory_limit_bytes} ({size_text(memory_limit_bytes)}) is too little: of all "
            f"strategies of all segments, those of minimum memory need {minimum_bytes} bytes "
            f"({size_text(minimum_bytes)}). Raise the limit to at least that, use more devices, or a smaller batch."
        )
    largest_bytes = sum(int(segment.sizes_bytes.max()) for segment in segments)
    limit_bytes = largest_bytes if memory_limit_bytes is None else min(largest_bytes, memory_limit_bytes)
    # With so low a limit, one partial plan is left for each layout.
    (smallest,), _ = _walk(segments, rests_bytes, limit_bytes=minimum_bytes)
    relaxed, fast = relax_to_limit(segments, smallest, limit_bytes)
    best, gap_s = _prove(segments, rests_bytes, limit_bytes, relaxed, fast)
    if max_points == 1:
        return Frontier(points=(best,), gap_s=gap_s)
    samples, _ = _walk(segments, rests_bytes, limit_bytes=limit_bytes, max_partials=_SAMPLED_PARTIALS)
    points = merge_points((best, smallest, *samples))
    return Frontier(points=tuple(points[place] for place in _spread(len(points), max_points)), gap_s=gap_s)


def fastest_with(
    chain: Sequence[PricedSegment], places: Collection[int], strategy: int, *, memory_limit_bytes: int | None
) -> FrontierPoint | None:
    """Returns the fastest plan with one strategy for the segments at some places; None if none fits."""
    held: dict[int, PricedSegment] = {}
    for segment in (chain[place] for place in places):
        times_s = [math.inf] * len(segment.times_s)
        times_s[strategy] = segment.times_s[strategy]
        held.setdefault(id(segment), replace(segment, times_s=tuple(times_s)))
    chain = [held[id(segment)] if place in places else segment for place, segment in enumerate(chain)]
    try:
        fastest = relax(trim_chain(chain), 0.0).point
        if memory_limit_bytes is None or fastest.size_bytes <= memory_limit_bytes:
            return fastest
        return search_chain(chain, memory_limit_bytes=memory_limit_bytes, max_points=1).best
    except ShardingError:
        return None


def _prove(
    segments: Sequence[TrimmedSegment],
    rests_bytes: Sequence[Int[np.ndarray, " exits"]],
    limit_bytes: int,
    relaxed: Relaxed,
    best: FrontierPoint,
) -> tuple[FrontierPoint, float]:
    """Returns the fastest plan within the limit, and by how much another might be faster."""
    width_s = 0.0
    while True:
        points, is_whole = _walk(segments, rests_bytes, limit_bytes=limit_bytes, above=(relaxed, width_s))
        best = merge_points((best, *points))[0]
        open_s = relaxed.excess_s(best.time_s, limit_bytes)
        if open_s <= width_s + (relaxed.minimum_s + width_s) * relaxed.rounding or not is_whole:
            return best, 0.0 if is_whole else open_s
        width_s = min(open_s, max(width_s * _WIDER, open_s * _FIRST_WIDTH))


def _walk(
    segments: Sequence[TrimmedSegment],
    rests_bytes: Sequence[Int[np.ndarray, " exits"]],
    *,
    limit_bytes: int,
    above: tuple[Relaxed, float] | None = None,
    max_partials: int = _MAX_PARTIALS,
) -> tuple[tuple[FrontierPoint, ...], bool]:
    """Returns the frontier within the limit, from the smallest to the fastest, and whether it is whole.

    Args:
        rests_bytes: `minimum_sizes(segments)`.
        above: a line, and the width of the band above it to which plans are kept; None for all.
        max_partials: the number of partial plans kept at a segment; where there are more, only some are kept, evenly
            spread. The plans are real, but others may then dominate them.
    """
    steps, is_whole = [np.zeros(1, _PARTIAL)], True
    for place, segment in enumerate(segments, 1):
        fronts = []
        for exit_ in range(segment.num_exits):
            partials = _extend(steps[-1], segment, exit_)
            sizes_bytes = partials["size_bytes"]
            is_kept = sizes_bytes <= limit_bytes - rests_bytes[place][exit_]
            if above is not None:
                is_kept &= partials["time_s"] <= above[0].latest_s(place, exit_, sizes_bytes, width_s=above[1])
            fronts.append(_front(partials[is_kept]))
        if sum(map(len, fronts)) > max_partials:
            is_whole = False
            fronts = [front[_spread(len(front), max_partials // len(fronts))] for front in fronts]
        steps.append(np.concatenate(fronts))
    ends = at = _front(steps[-1])
    choices = []
    for partials, segment in zip(reversed(steps[:-1]), reversed(segments), strict=True):
        choices.append(segment.strategies[at["chosen"]].tolist())
        at = partials[at["parent"]]
    rows = zip(ends["time_s"].tolist(), ends["size_bytes"].tolist(), *reversed(choices), strict=True)
    return tuple(FrontierPoint(time_s=row[0], size_bytes=row[1], choices=row[2:]) for row in rows), is_whole


def _extend(partials: np.ndarray, segment: TrimmedSegment, exit_: int) -> np.ndarray:
    """Returns partial plans with every strategy after them that leads to the exit layout."""
    made = [np.zeros(0, _PARTIAL)]
    for entry in np.unique(segment.entries[segment.exits == exit_]):
        times_s = partials["time_s"] + segment.reshards_s[partials["exit"], entry]
        parents = pareto_order(times_s, partials["size_bytes"])
        parents = parents[np.isfinite(times_s[parents])]
        (group,) = np.nonzero((segment.entries == entry) & (segment.exits == exit_))
        extended = np.zeros((len(parents), len(group)), _PARTIAL)
        extended["time_s"] = np.add.outer(times_s[parents], segment.times_s[group])
        extended["size_bytes"] = np.add.outer(partials["size_bytes"][parents], segment.sizes_bytes[group])
        extended["exit"], extended["parent"], extended["chosen"] = exit_, parents[:, None], group
        made.append(extended.ravel())
    return np.concatenate(made)


def _front(partials: np.ndarray) -> np.ndarray:
    return partials[pareto_order(partials["time_s"], partials["size_bytes"])]


def _spread(count: int, most: int) -> Int[np.ndarray, " kept"]:
    """Returns at most so many places, evenly spread, with both ends (the first alone for one)."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)


def size_text(size_bytes: float) -> str:
    """Returns `1.50 GiB` or `12.00 MiB`, as all messages of the search write numbers of bytes."""
    return f"{size_bytes / 2**30:.2f} GiB" if size_bytes >= 2**27 else f"{size_bytes / 2**20:.2f} MiB"
