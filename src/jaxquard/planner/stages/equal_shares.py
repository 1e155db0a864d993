"""The time of a step as if its segments could be divided among the actors: what orders configurations.

Of the whole chain, an actor can have in a time at most the share

    the minimum over prices of a byte of (time + price x room) / (the chain's load + price x its bytes)

where the bytes are those that stay and, of activations, as many as the actor keeps; each segment has the strategy of
the smallest cost at a price. The estimate is the time in which the shares of all actors add up to the chain, found by
bisection. It is close to a bound from below, but none: segments differ, and actors that keep few activations may
take those that have many. Whether anything fits is a bound where each actor has one stage: stages that take as many
segments as fit, one after the other, take all.
"""

import functools
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from jaxquard.planner.stages.schedule_profile import ScheduleProfile
from jaxquard.planner.stages.segment_costs import SegmentCosts

# Prices of a byte that are tried, over the price at which all bytes cost as much as all loads.
_PRICES = np.concatenate([[0.0], np.geomspace(3e-3, 100.0, 24)])
# Of the longest time that is looked at, over the shortest, and how often that range is halved.
_MAX_SLOWDOWN, _NUM_HALVINGS = 16.0, 10
# Of actors with several stages, shares of less than this in all, at any price, mean that nothing fits.
_MIN_SHARE = 0.9


class EqualShares:
    """Estimates of one chain under many schedules.

    Args:
        begins: the segments with which stages may begin, 0 first.
    """

    def __init__(self, chain: Sequence[SegmentCosts], begins: Sequence[int]) -> None:
        kinds = {segment.kind: segment.costs for segment in chain}
        numbers = {kind: number for number, kind in enumerate(kinds)}
        self._kinds, self._begins = np.asarray([numbers[segment.kind] for segment in chain]), begins
        self._largest_s = functools.cache(self._find_largest_s)
        self._input_bytes = min((segment.input_bytes for segment in chain[1:]), default=0)
        self._counts = np.bincount(self._kinds).astype(np.float64)
        # Kinds with fewer strategies repeat their last one.
        width = max(map(len, kinds.values()))
        rows = [(costs, np.minimum(np.arange(width), len(costs) - 1)) for costs in kinds.values()]
        self._times_s = np.asarray([costs.microbatch_s[own] for costs, own in rows])
        self._steps_s, self._activations, self._working = (
            np.asarray([costs.column(name)[own] for costs, own in rows], dtype=np.float64)
            for name in ("step_s", "activation_bytes", "working_bytes")
        )
        self._fixed = np.asarray([costs.fixed_bytes[own] for costs, own in rows], dtype=np.float64)

    def smallest_bytes(self) -> float:
        """Returns the smallest bytes of the chain, with the activations of one microbatch."""
        return float(self._counts @ (self._fixed + self._activations).min(axis=1))

    def estimate_s(self, profile: ScheduleProfile, memory_limit_bytes: float) -> float:
        """Returns the estimated time of a step; infinite if nothing fits the memory."""
        loads_s = (profile.num_microbatches - 1) * self._times_s + self._steps_s
        fill_s = profile.fill_weight * float(self._counts @ self._times_s.min(axis=1))
        actor_s = self._share_s(profile, loads_s, memory_limit_bytes)
        if not np.isfinite(actor_s):
            return np.inf
        stage_s = max(actor_s / profile.num_chunks, self._largest_s(profile.num_stages, profile.num_microbatches))
        weight = profile.stage_weight if profile.num_chunks > 1 else 0.0
        return fill_s + (1 - weight) * max(actor_s, stage_s) + weight * profile.num_chunks * stage_s

    def _share_s(self, profile: ScheduleProfile, loads_s: np.ndarray, limit_bytes: float) -> float:
        """Returns the time in which the shares of all actors add up to the chain."""
        shortest_s = float(self._counts @ loads_s.min(axis=1)) / profile.num_actors
        if not np.isfinite(limit_bytes) or shortest_s <= 0:
            return shortest_s
        kept, num_actors = _find_kept(profile)
        room_bytes = limit_bytes - self._working_bytes(profile.num_actors)
        if room_bytes <= 0:
            return _MAX_SLOWDOWN * shortest_s if self._may_fit(profile, limit_bytes) else np.inf
        sizes = self._fixed + kept[:, None, None] * self._activations
        fastest = np.take_along_axis(sizes, loads_s.argmin(axis=1)[None, :, None], axis=2)[:, :, 0] @ self._counts
        if fastest.max() <= profile.num_actors * room_bytes:
            return shortest_s
        if not self._may_fit(profile, limit_bytes):
            return np.inf
        prices = _PRICES * shortest_s * profile.num_actors / float((sizes.min(axis=2) @ self._counts).mean())
        costs_s = (loads_s + prices[:, None, None, None] * sizes).min(axis=3) @ self._counts

        def share(time_s: float) -> float:
            return float(((time_s + prices[:, None] * room_bytes) / costs_s).min(axis=0) @ num_actors)

        low_s, high_s = shortest_s, _MAX_SLOWDOWN * shortest_s
        if share(high_s) < 1:
            return high_s if profile.num_chunks == 1 or share(high_s) >= _MIN_SHARE else np.inf
        for _ in range(_NUM_HALVINGS):
            middle_s = (low_s * high_s) ** 0.5
            low_s, high_s = (low_s, middle_s) if share(middle_s) >= 1 else (middle_s, high_s)
        return low_s

    def _find_largest_s(self, num_stages: int, num_microbatches: int) -> float:
        """Returns a bound on the largest load of a stage, as segments cannot be divided."""
        loads_s = ((num_microbatches - 1) * self._times_s + self._steps_s).min(axis=1)[self._kinds]
        parts_s = np.add.reduceat(loads_s, self._begins)
        ends_s, low_s = (
            [0.0, *np.cumsum(parts_s).tolist()],
            max(float(parts_s.max()), float(parts_s.sum()) / num_stages),
        )
        high_s = low_s + float(parts_s.max())
        for _ in range(_NUM_HALVINGS):
            middle_s, place = (low_s + high_s) / 2, 0
            # Each stage takes as many parts as it may.
            for _ in range(num_stages):
                place = bisect_right(ends_s, ends_s[place] + middle_s) - 1
            low_s, high_s = (low_s, middle_s) if place == len(parts_s) else (middle_s, high_s)
        return low_s

    def _working_bytes(self, num_actors: int) -> float:
        """Returns the fewest working bytes of an equal share of the segments, and of what enters it."""
        working, length = self._working.min(axis=1)[self._kinds], max(1, len(self._kinds) // num_actors)
        windows = np.lib.stride_tricks.sliding_window_view(working, length)
        return float(windows.max(axis=1).min()) + self._input_bytes * (num_actors > 1)

    def _may_fit(self, profile: ScheduleProfile, limit_bytes: float) -> bool:
        """Says False if stages that take as many segments as fit, one after the other, do not take all.

        With several stages on an actor, each may have all of its memory.
        """
        place, working = 0, self._working.min(axis=1)[self._kinds].tolist()
        for kept in profile.most_kept.tolist():
            if place < len(working):
                sizes = (self._fixed + kept * self._activations).min(axis=1)[self._kinds]
                ends = [0.0, *np.cumsum(sizes).tolist()]
                place = max(place, bisect_right(ends, ends[place] + limit_bytes - working[place]) - 1)
        return place >= len(working)


def _find_kept(profile: ScheduleProfile) -> tuple[Float[np.ndarray, " numbers"], Int[np.ndarray, " numbers"]]:
    """Returns the activations that actors keep of equal stages, and how many actors keep these."""
    most = np.zeros(profile.num_actors)
    np.maximum.at(most, profile.kept_actors, profile.kept.sum(axis=1) / profile.num_chunks)
    return np.unique(most, return_counts=True)
