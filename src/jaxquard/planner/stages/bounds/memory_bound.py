"""Rules out schedules under which a chain cannot fit: bounds on the memory of actors, before assignments are tried."""

import functools
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from jaxquard.planner.stages.schedule_profile import ScheduleProfile
from jaxquard.planner.stages.segment_costs import SegmentCosts


class MemoryBound:
    """Bounds of one chain: each segment is as small as any of its strategies, in every term for itself.

    Attributes:
        fixed: the bytes of each segment that do not depend on microbatches.
        activations: of one microbatch.
        working: while it runs.
        smallest_bytes: of the chain, with the activations of one microbatch.
    """

    def __init__(self, chain: Sequence[SegmentCosts]) -> None:
        self._chain = chain
        self._kinds = {segment.kind: segment for segment in chain}
        minima = np.asarray([_minima(segment) for segment in self._kinds.values()], dtype=np.float64)
        places = {kind: place for place, kind in enumerate(self._kinds)}
        self.fixed, self.activations, self.working = minima[[places[segment.kind] for segment in chain]].T
        self.smallest_bytes = float(self.fixed.sum() + self.activations.sum())
        held = self.activations > 0
        self._held, self._all_bytes = held, (float(self.fixed.sum()), float(self.activations.sum()))
        self._fixed_ratio = float((self.fixed[held] / self.activations[held]).min(initial=np.inf))
        self._smallest_working = np.sort(self.working)
        self._ends_bytes: dict[int, list[float]] = {}

    def may_fit(
        self,
        profile: ScheduleProfile,
        memory_limit_bytes: float,
        *,
        loads_s: Float[np.ndarray, " segments"],
        max_load_s: float,
    ) -> bool:
        """Says False if no assignment fits.

        Args:
            loads_s: a bound on the load of each segment.
            max_load_s: the largest load of a stage, if the step is to take no longer than is known.
        """
        held = self._held
        ratio = float((self.activations[held] / np.maximum(loads_s[held], 1e-300)).max(initial=0.0))
        # A stage takes activations only as far as its load allows.
        most = np.inf if np.isinf(max_load_s) else max(0.0, max_load_s) * ratio * (1 + 1e-9)
        if not self._fits_divided(profile, memory_limit_bytes, most):
            return False
        return profile.num_chunks > 1 or self._fits_in_order(profile, memory_limit_bytes)

    def _fits_divided(self, profile: ScheduleProfile, limit_bytes: float, most: float) -> bool:
        """Says False if not even segments that can be divided fit: stages that keep the fewest take the most.

        Fixed bytes come with activations, and every actor has the working bytes of a segment that no other has.
        """
        order, stages = _order_stages(profile)
        working = self._smallest_working[: profile.num_actors]
        room = dict(zip(order, (limit_bytes - working).tolist(), strict=True))
        fixed_bytes, all_bytes = self._all_bytes
        left, kept_bytes = all_bytes, 0.0
        for count, actor in stages if left else ():
            size = max(self._fixed_ratio + count, 1e-300)
            taken = min(left, most, max(0.0, room[actor]) / size)
            room[actor] -= taken * size
            left, kept_bytes = left - taken, kept_bytes + count * taken
        if left > 1e-9 * all_bytes:
            return False
        needed_bytes = fixed_bytes + kept_bytes + float(working.sum())
        return needed_bytes * (1 - 1e-9) <= limit_bytes * profile.num_actors

    def _fits_in_order(self, profile: ScheduleProfile, limit_bytes: float) -> bool:
        """Says False if stages that take as many segments as fit, one after the other, do not take all.

        A stage that takes more segments never harms those after it.
        """
        place, working = 0, self.working.tolist()
        for kept in profile.most_kept.tolist():
            if place >= len(self._chain):
                break
            ends = self._ends(kept)
            most_bytes = ends[place] + limit_bytes - working[place]
            place = max(place, bisect_right(ends, most_bytes) - 1)
        return place >= len(self._chain)

    def _ends(self, kept: int) -> list[float]:
        if kept not in self._ends_bytes:
            sizes = {
                kind: float((segment.costs.fixed_bytes + kept * segment.costs.column("activation_bytes")).min())
                for kind, segment in self._kinds.items()
            }
            self._ends_bytes[kept] = np.cumsum([0.0, *(sizes[segment.kind] for segment in self._chain)]).tolist()
        return self._ends_bytes[kept]


def _minima(segment: SegmentCosts) -> tuple[int, int, int]:
    costs = segment.costs
    return (
        int(costs.fixed_bytes.min()),
        int(costs.column("activation_bytes").min()),
        int(costs.column("working_bytes").min()),
    )


@functools.lru_cache(maxsize=4096)
def _order_stages(profile: ScheduleProfile) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns the actors, and the stages as pairs of a number of activations and an actor: the fewest first.

    They are those that an actor keeps of its stages at the same time.
    """
    counts = {}
    for actor in range(profile.num_actors):
        rows = np.flatnonzero(profile.kept_actors == actor)
        largest = rows[profile.kept[rows].sum(axis=1).argmax()]
        own = [stage for stage, owner in enumerate(profile.actor_of) if owner == actor]
        counts[actor] = sorted(profile.kept[largest, own].tolist())
    stages = sorted((count, actor) for actor, kept in counts.items() for count in kept)
    return sorted(counts, key=lambda actor: counts[actor][0]), stages
