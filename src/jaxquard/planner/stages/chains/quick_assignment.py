"""The time of an assignment that is found at once, so that the exact search need not look at anything slower.

Each segment takes the strategy that is the fastest after the one before, and stages begin where the sum of their times
comes nearest to equal shares.
"""

from collections.abc import Sequence

import numpy as np

from jaxquard.planner.stages.schedule_profile import ScheduleProfile
from jaxquard.planner.stages.segment_costs import SegmentCosts


def quick_time_s(
    chain: Sequence[SegmentCosts],
    profile: ScheduleProfile,
    crossings_s: np.ndarray,
    fastest: tuple[np.ndarray, np.ndarray] | None = None,
) -> float:
    """Returns the estimated time of an assignment, whatever its memory; infinite if none is found at once.

    Args:
        fastest: what `fastest_strategies` returns for the chain, if it is known.
        crossings_s: for each stage, the weighted time of the transfer into it, for each segment with which it begins.
    """
    times_s, steps_s = fastest_strategies(chain, profile.num_microbatches) if fastest is None else fastest
    loads_s = (profile.num_microbatches - 1) * times_s + steps_s
    begins = _even_begins(chain, np.cumsum(loads_s), profile.num_stages)
    if begins is None:
        return np.inf
    stages_s = np.add.reduceat(loads_s, begins)
    actors_s = np.bincount(profile.actor_of, weights=stages_s)
    weight = profile.stage_weight if profile.num_chunks > 1 else 0.0
    busiest_s = (1 - weight) * actors_s.max() + weight * profile.num_chunks * stages_s.max()
    fill_s = profile.fill_weight * times_s.sum() + crossings_s[np.arange(profile.num_stages), begins].sum()
    return float(fill_s + busiest_s)


def fastest_strategies(chain: Sequence[SegmentCosts], num_microbatches: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the time of each segment with the reshard before it, and its time once a step."""
    known: dict[tuple[int, int, int], tuple[float, float, int]] = {}
    times_s, steps_s, layout = [], [], 0
    for segment in chain:
        key = segment.kind, id(segment.reshards_s), layout
        if key not in known:
            reshards_s = None if segment.reshards_s is None else segment.reshards_s[layout]
            costs = segment.costs
            own_s = costs.microbatch_s + (0.0 if reshards_s is None else reshards_s[costs.column("entry")])
            own_steps_s = costs.column("step_s")
            loads_s = own_steps_s + ((num_microbatches - 1) * own_s if num_microbatches > 1 else 0.0)
            # Where no reshard has a price, a strategy takes forever, with one microbatch as well.
            best = int(np.where(np.isfinite(own_s), loads_s, np.inf).argmin())
            known[key] = float(own_s[best]), float(own_steps_s[best]), int(costs.column("exit")[best])
        time_s, step_s, layout = known[key]
        times_s.append(time_s)
        steps_s.append(step_s)
    return np.asarray(times_s), np.asarray(steps_s)


def _even_begins(chain: Sequence[SegmentCosts], ends_s: np.ndarray, num_stages: int) -> np.ndarray | None:
    """Returns the first segment of each stage; None where too few may begin one."""
    places = np.asarray([place for place in range(1, len(chain)) if chain[place].can_begin_stage], dtype=np.int64)
    if len(places) < num_stages - 1:
        return None
    shares_s = ends_s[-1] * np.arange(1, num_stages) / num_stages
    nearest = np.abs(ends_s[places - 1][:, None] - shares_s[None]).argmin(axis=0) if num_stages > 1 else places[:0]
    # Each begins after the one before, and leaves room for those after.
    steps = np.arange(num_stages - 1)
    nearest = np.maximum.accumulate(nearest - steps) + steps
    nearest = np.minimum(nearest, len(places) - num_stages + 1 + steps)
    return np.concatenate([np.zeros(1, dtype=np.int64), places[nearest]])
