"""All plans of the Pareto frontier that lie in bands above the lines of relaxed searches.

The chain is walked once. At each segment and exit layout the partial plans that no other dominates are kept, less those
that can no longer end within the memory limit, nor within any band: what is left to come is bounded from below by the
relaxed searches. Whatever dominates a plan in a band is in that band too, so the plans found are on the true frontier,
and all of those in the bands are found.

Floats: a longer sum never turns two sums around (rounding is monotone), so dominance is exact for times added from
the first segment to the last. The bands alone compare sums of different order, and are wider by the rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxquard.intraop.search.frontier import FrontierPoint, pareto_order
from jaxquard.intraop.search.priced_segment import TrimmedSegment
from jaxquard.intraop.search.relaxation import Relaxed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Band:
    """The plans whose time + multiplier x bytes is at most `width_s` above the minimum."""

    relaxed: Relaxed
    width_s: float

    @property
    def reach_s(self) -> float:
        """The width with half of the rounding that `latest_s` allows: what lies less above is surely found."""
        return self.width_s + (self.relaxed.minimum_s + self.width_s) * self.relaxed.rounding / 2

    def latest_s(self, place: int, exit_: int, sizes_bytes: Int[np.ndarray, " plans"]) -> Float[np.ndarray, " plans"]:
        """Returns the time at which partial plans of these sizes must have passed `place` to end in the band."""
        relaxed = self.relaxed
        end_s = (relaxed.minimum_s + self.width_s) * (1 + relaxed.rounding) - relaxed.rests_s[place][exit_]
        return end_s - relaxed.multiplier_s_per_byte * sizes_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Partials:
    """Partial plans up to a segment, each with its parent in the step before and its choice."""

    times_s: Float[np.ndarray, " plans"]
    sizes_bytes: Int[np.ndarray, " plans"]
    exits: Int[np.ndarray, " plans"]
    parents: Int[np.ndarray, " plans"]
    chosen: Int[np.ndarray, " plans"]

    def __getitem__(self, index: np.ndarray | slice) -> "_Partials":
        return _Partials(
            times_s=self.times_s[index],
            sizes_bytes=self.sizes_bytes[index],
            exits=self.exits[index],
            parents=self.parents[index],
            chosen=self.chosen[index],
        )

    def __len__(self) -> int:
        return len(self.times_s)


def search_band(
    segments: Sequence[TrimmedSegment],
    bands: Sequence[Band],
    *,
    limit_bytes: int,
    rests_bytes: Sequence[Int[np.ndarray, " exits"]],
    max_partials: int,
    gives_up: bool = False,
) -> tuple[tuple[FrontierPoint, ...], bool]:
    """Returns the frontier within the limit and the bands, from the smallest to the fastest.

    Args:
        bands: no band at all lets every plan through.
        rests_bytes: `minimum_sizes(segments)`.
        max_partials: the number of partial plans kept at a segment; where there are more, some are dropped.
        gives_up: return no plans instead of dropping some.

    Returns:
        Plans, and whether all partial plans were kept. If not, the plans are real, but others may dominate them.
    """
    start = np.zeros(1, dtype=np.int64)
    steps = [_Partials(times_s=np.zeros(1), sizes_bytes=start, exits=start, parents=start, chosen=start)]
    is_whole = True
    for place, segment in enumerate(segments, 1):
        arrivals = _reshard(steps[-1], segment)
        fronts = []
        for exit_ in range(segment.num_exits):
            partials = _run(arrivals, segment, exit_)
            partials = partials[partials.sizes_bytes <= limit_bytes - rests_bytes[place][exit_]]
            partials = partials[_in_bands(partials, bands, place, exit_)]
            fronts.append(partials[pareto_order(partials.times_s, partials.sizes_bytes)])
        if sum(map(len, fronts)) > max_partials:
            if gives_up:
                return (), False
            is_whole = False
            fronts = [_spread(front, max_partials // len(fronts)) for front in fronts]
        steps.append(_join(fronts))
    return _plans(steps, segments), is_whole


def _reshard(partials: _Partials, segment: TrimmedSegment) -> dict[int, _Partials]:
    """Returns the partial plans at each entry layout of the segment, `parents` now being themselves."""
    arrivals = {}
    for entry in sorted({entry for entry, _ in segment.groups}):
        times_s = partials.times_s + segment.reshards_s[partials.exits, entry]
        order = pareto_order(times_s, partials.sizes_bytes)
        order = order[np.isfinite(times_s[order])]
        arrivals[entry] = _Partials(
            times_s=times_s[order],
            sizes_bytes=partials.sizes_bytes[order],
            exits=partials.exits[order],
            parents=order,
            chosen=partials.chosen[order],
        )
    return arrivals


def _run(arrivals: dict[int, _Partials], segment: TrimmedSegment, exit_: int) -> _Partials:
    """Extends every arrival by every strategy that leads to the exit layout."""
    ends = []
    for (entry, group_exit), group in segment.groups.items():
        if group_exit == exit_:
            came = arrivals[entry]
            ends.append(
                _Partials(
                    times_s=np.add.outer(came.times_s, segment.times_s[group]).ravel(),
                    sizes_bytes=np.add.outer(came.sizes_bytes, segment.sizes_bytes[group]).ravel(),
                    exits=np.full(len(came) * len(group), exit_),
                    parents=np.repeat(came.parents, len(group)),
                    chosen=np.tile(group, len(came)),
                )
            )
    return _join(ends)


def _in_bands(partials: _Partials, bands: Sequence[Band], place: int, exit_: int) -> Bool[np.ndarray, " plans"]:
    if not bands:
        return np.ones(len(partials), dtype=bool)
    latest_s = np.full(len(partials), -np.inf)
    for band in bands:
        np.maximum(latest_s, band.latest_s(place, exit_, partials.sizes_bytes), out=latest_s)
    return partials.times_s <= latest_s


def _spread(front: _Partials, max_partials: int) -> _Partials:
    if len(front) <= max_partials:
        return front
    return front[np.linspace(0, len(front) - 1, max_partials).round().astype(np.int64)]


def _join(parts: Sequence[_Partials]) -> _Partials:
    empty = np.arange(0)
    return _Partials(
        times_s=np.concatenate([np.zeros(0), *(part.times_s for part in parts)]),
        sizes_bytes=np.concatenate([empty, *(part.sizes_bytes for part in parts)]),
        exits=np.concatenate([empty, *(part.exits for part in parts)]),
        parents=np.concatenate([empty, *(part.parents for part in parts)]),
        chosen=np.concatenate([empty, *(part.chosen for part in parts)]),
    )


def _plans(steps: Sequence[_Partials], segments: Sequence[TrimmedSegment]) -> tuple[FrontierPoint, ...]:
    """Follows the frontier of the last step back to the first."""
    last = steps[-1]
    ends = pareto_order(last.times_s, last.sizes_bytes)
    choices, at = [], ends
    for partials, segment in zip(reversed(steps[1:]), reversed(segments), strict=True):
        choices.append(segment.strategies[partials.chosen[at]].tolist())
        at = partials.parents[at]
    rows = zip(last.times_s[ends].tolist(), last.sizes_bytes[ends].tolist(), *reversed(choices), strict=True)
    return tuple(FrontierPoint(time_s=row[0], size_bytes=row[1], choices=row[2:]) for row in rows)
