"""A bound on the time of a step under a memory limit: as if segments could be divided among stages.

For any prices of an actor's bytes, and any weights of the stages' loads that add up as the estimate does, a step takes
at least

    the sum over segments of the minimum over stages and strategies of
        fill weight x time + the stage's weight x load + the actor's price x (fixed bytes + kept x activations)
    - the sum over actors of price x room

by Lagrangian duality: what fits has no more bytes than room. Good prices and weights are those under which a share of
the chain costs the same everywhere, in the relaxed solution where all actors are busy for the same time and each has
the strategies that its room allows. That solution is found by bisection; poor ones only make the bound weak.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxquard.planner.stages.schedule_profile import ScheduleProfile
from jaxquard.planner.stages.segment_costs import SegmentCosts

# Prices of a byte that are tried, over the price at which all bytes cost as much as all loads.
_PRICES = np.concatenate([[0.0], np.geomspace(3e-3, 60.0, 31)])
# The longest load that is looked at, over that of the fastest strategies in equal shares.
_MAX_SLOWDOWN = 16.0
_NUM_HALVINGS = 10
_TINY = 1e-30
# The longest stage, over an equal share of its actor's load.
_WIDEST = np.asarray([1.0, 1.5, 3.0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Actors:
    """The actors of a schedule that differ, as the memory sees them.

    Attributes:
        kept: for each stage of an actor, the activations that it keeps at one time, when it keeps the most.
        counts: of the actors with these.
        mean_kept: the largest mean over an actor's stages.
        numbers_kept: of activations that any stage keeps.
        number_of: for each stage of an actor, which of them is its.
    """

    kept: Int[np.ndarray, "actors chunks"]
    counts: Float[np.ndarray, " actors"]
    mean_kept: float
    numbers_kept: Int[np.ndarray, " numbers"]
    number_of: Int[np.ndarray, "actors chunks"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shares:
    """The cost of the whole chain on a stage, for each actor, price of a byte and stage; cheap stages first.

    Attributes:
        prices: of a byte, in seconds of load.
        costs_s: the smallest loads of the chain, with the price of its bytes.
        stages: the stage of each cost.
        lifts: what a stage's load must weigh more, in all of an actor's, for cheaper ones to cost as much as each.
        loads_s: of the chain, by the strategies of the smallest cost.
    """

    prices: Float[np.ndarray, " prices"]
    costs_s: Float[np.ndarray, "actors prices chunks"]
    stages: Int[np.ndarray, "actors prices chunks"]
    lifts: Float[np.ndarray, "actors prices chunks"]
    loads_s: Float[np.ndarray, "actors prices chunks"]


class RelaxedBound:
    """Bounds of one chain under many schedules and limits."""

    def __init__(self, chain: Sequence[SegmentCosts]) -> None:
        kinds = {segment.kind: segment for segment in chain}
        places = {kind: place for place, kind in enumerate(kinds)}
        self._kinds = np.asarray([places[segment.kind] for segment in chain])
        self._counts = np.bincount(self._kinds).astype(np.float64)
        costs = [segment.costs for segment in kinds.values()]
        width = max(map(len, costs))
        # Kinds with fewer strategies repeat their last one.
        rows = [np.minimum(np.arange(width), len(one) - 1) for one in costs]
        pairs = list(zip(costs, rows, strict=True))
        self._times_s = np.asarray([one.microbatch_s[own] for one, own in pairs])
        self._steps_s = np.asarray([one.column("step_s")[own] for one, own in pairs])
        self._fixed = np.asarray([one.fixed_bytes[own] for one, own in pairs], dtype=np.float64)
        self._activations = np.asarray([one.column("activation_bytes")[own] for one, own in pairs], dtype=np.float64)
        self._working = np.asarray([one.column("working_bytes")[own] for one, own in pairs], dtype=np.float64)
        self._shared_working: dict[tuple[int, int, float], float] = {}

    def bound_s(self, profile: ScheduleProfile, memory_limit_bytes: float, *, known_s: float = np.inf) -> float:
        """Returns a bound on the estimated time of what fits; infinite if nothing does.

        Args:
            known_s: a time above which the bound need not be tight.
        """
        room_bytes = memory_limit_bytes - self._working_everywhere(profile, memory_limit_bytes)
        if room_bytes < 0:
            return np.inf
        loads_s = self._loads_s(profile.num_microbatches)
        plain_s = profile.fill_weight * self._times_s + loads_s / profile.num_actors
        bound_s = float(self._counts @ plain_s.min(axis=1))
        if self.fits_fastest(profile, memory_limit_bytes, slack=0.0) or not loads_s.any(axis=1).all():
            return bound_s
        actors = _find_actors(profile)
        shares = self._find_shares(loads_s, actors)
        has_weight = profile.num_chunks > 1 and profile.stage_weight > 0
        for widest in np.unique(np.minimum(_WIDEST, profile.num_chunks)) if has_weight else [float(profile.num_chunks)]:
            if bound_s > known_s:
                break
            chosen = _balance(shares, actors, room_bytes, widest / profile.num_chunks)
            bound_s = max(bound_s, self._price(profile, loads_s, actors, shares, chosen, room_bytes))
        return bound_s

    def fits_fastest(self, profile: ScheduleProfile, memory_limit_bytes: float, *, slack: float = 0.03) -> bool:
        """Says whether the fastest strategies fit, in equal shares of the chain: then something like them does."""
        loads_s = self._loads_s(profile.num_microbatches)
        fastest = (profile.fill_weight * self._times_s + loads_s / profile.num_actors).argmin(axis=1)
        kinds = np.arange(len(fastest))
        fixed = self._counts @ self._fixed[kinds, fastest]
        kept = self._counts @ self._activations[kinds, fastest]
        share = (fixed + _find_actors(profile).mean_kept * kept) / profile.num_actors
        needed = share + self._working[kinds, fastest].max()
        return bool(needed <= (1 - slack) * memory_limit_bytes)

    def is_like(self, other: "RelaxedBound", num_microbatches: int) -> bool:
        """Says whether all sums of another chain are about the same: bytes and loads to a thousandth."""
        if self._times_s.shape != other._times_s.shape:
            return False
        pairs = [(one._loads_s(num_microbatches) for one in (self, other))]
        pairs += [(getattr(one, name) for one in (self, other)) for name in ("_fixed", "_activations", "_working")]
        return all(np.allclose(self._counts @ ours, other._counts @ theirs, rtol=1e-3) for ours, theirs in pairs)

    def _loads_s(self, num_microbatches: int) -> np.ndarray:
        return (num_microbatches - 1) * self._times_s + self._steps_s

    def _working_everywhere(self, profile: ScheduleProfile, limit_bytes: float) -> float:
        """Returns working bytes that every actor has, or has room for.

        Actors without a segment of so many bytes have only runs of smaller ones between them. If those are so few that
        they fit beside these bytes all the same, the bytes can be counted there too.
        """
        most_kept = int(profile.kept.max(initial=0))
        key = profile.num_chunks, most_kept, limit_bytes
        if key not in self._shared_working:
            smallest = self._working.min(axis=1)
            sizes = (self._fixed + most_kept * self._activations).max(axis=1)[self._kinds]
            found = float(smallest.min())
            for working in np.unique(smallest)[::-1].tolist():
                is_small = (smallest < working)[self._kinds]
                ends = np.cumsum(np.where(is_small, sizes, 0.0))
                before = np.maximum.accumulate(np.where(is_small, 0.0, ends))
                if profile.num_chunks * float((ends - before).max()) <= limit_bytes - working:
                    found = working
                    break
            self._shared_working[key] = found
        return self._shared_working[key]

    def _find_shares(self, loads_s: np.ndarray, actors: _Actors) -> _Shares:
        of_stage = actors.number_of
        sizes = self._fixed + actors.numbers_kept[:, None, None] * self._activations
        typical = float(self._counts @ (self._fixed + actors.kept.mean() * self._activations).min(axis=1))
        prices = _PRICES * float(self._counts @ loads_s.min(axis=1)) / max(typical, 1.0)
        costs_s = loads_s + prices[:, None, None] * sizes[:, None]
        chosen, kinds = costs_s.argmin(axis=3), np.arange(len(self._counts))
        # To take the minima from their places is quicker than to look for them again.
        minima_s = costs_s.reshape(-1, costs_s.shape[3])[np.arange(chosen.size), chosen.ravel()].reshape(chosen.shape)
        totals_s = (minima_s @ self._counts)[of_stage].swapaxes(1, 2)
        all_loads_s = (loads_s[kinds, chosen] @ self._counts)[of_stage].swapaxes(1, 2)
        stages = totals_s.argsort(axis=2)
        totals_s = np.take_along_axis(totals_s, stages, axis=2)
        all_loads_s = np.take_along_axis(all_loads_s, stages, axis=2)
        gaps_s = np.maximum(totals_s[:, :, :, None] - totals_s[:, :, None], 0.0)
        all_loads_s = np.maximum(all_loads_s, _TINY)
        lifts = (gaps_s / all_loads_s[:, :, None]).sum(axis=3)
        return _Shares(prices=prices, costs_s=totals_s, stages=stages, lifts=lifts, loads_s=all_loads_s)

    def _price(
        self,
        profile: ScheduleProfile,
        loads_s: np.ndarray,
        actors: _Actors,
        shares: _Shares,
        chosen: tuple[np.ndarray, np.ndarray],
        room_bytes: float,
    ) -> float:
        """Returns the bound by the prices and weights under which a share costs the same on all stages."""
        rows, (best, level) = np.arange(len(actors.counts)), chosen
        levels_s = np.maximum(shares.costs_s[rows, best, level], _TINY)
        lifts = np.empty(actors.kept.shape)
        gaps_s = np.maximum(levels_s[:, None] - shares.costs_s[rows, best], 0.0)
        np.put_along_axis(lifts, shares.stages[rows, best], gaps_s / shares.loads_s[rows, best], axis=1)
        # Weights of stages are at most what the estimate gives to the largest stage.
        share, mean = profile.stage_weight, float(actors.counts @ (lifts.mean(axis=1) / levels_s))
        most = np.inf if share == 1 else share / (1 - share) * float(actors.counts @ (1 / levels_s))
        lifts = lifts * min(1.0, most / mean) if mean else lifts
        weights = (1 + lifts) / levels_s[:, None]
        scale = profile.num_chunks / float(actors.counts @ weights.sum(axis=1))
        byte_prices = scale * shares.prices[best] / levels_s
        kept = actors.kept.reshape(-1, 1, 1)
        weight, price = scale * weights.reshape(kept.shape), byte_prices.repeat(profile.num_chunks).reshape(kept.shape)
        costs_s = (weight * loads_s + price * (self._fixed + kept * self._activations)).min(axis=0)
        smallest_s = (profile.fill_weight * self._times_s + costs_s).min(axis=1)
        return float(self._counts @ smallest_s - (actors.counts @ byte_prices) * room_bytes)


@functools.lru_cache(maxsize=4096)
def _find_actors(profile: ScheduleProfile) -> _Actors:
    """Returns the actors by what they keep of their stages; of several rows of one, that which keeps the most."""
    totals = profile.kept.sum(axis=1)
    order = np.lexsort((totals, profile.kept_actors))
    lasts = order[np.append(profile.kept_actors[order][1:] != profile.kept_actors[order][:-1], True)]
    by_actor = np.argsort(profile.actor_of, kind="stable").reshape(profile.num_actors, profile.num_chunks)
    kept = np.take_along_axis(profile.kept[lasts], by_actor, axis=1)
    found, counts = np.unique(np.sort(kept, axis=1), axis=0, return_counts=True)
    numbers_kept, number_of = np.unique(found, return_inverse=True)
    return _Actors(
        kept=found,
        counts=counts.astype(np.float64),
        mean_kept=float(found.mean(axis=1).max()),
        numbers_kept=numbers_kept,
        number_of=number_of.reshape(found.shape),
    )


def _balance(
    shares: _Shares, actors: _Actors, room_bytes: float, widest: float
) -> tuple[Int[np.ndarray, " actors"], Int[np.ndarray, " actors"]]:
    """Finds the relaxed solution by the largest share of the chain that each actor can have.

    In a time, an actor has at most

        (time + price x room + lifts x the longest load of a stage) / (the cost of the chain on its stages)

    of the chain, whatever the price of a byte and the lifts; those of the smallest are what room and time are worth.

    Args:
        widest: the longest load of a stage, over that of an actor.

    Returns:
        For each actor the places of its price, and of the cost to which cheaper stages are lifted.
    """
    room_s = shares.prices[:, None] * room_bytes
    per_time, costs_s = 1 + widest * shares.lifts, np.maximum(shares.costs_s, _TINY)
    rows = np.arange(len(actors.counts))

    def find(time_s: float) -> tuple[np.ndarray, np.ndarray]:
        found = ((time_s * per_time + room_s) / costs_s).reshape(len(rows), -1)
        places = found.argmin(axis=1)
        return found[rows, places], places

    low_s = max(_TINY, float(shares.costs_s[:, 0].min()) / float(actors.counts.sum()))
    high_s = _MAX_SLOWDOWN * low_s
    for _ in range(_NUM_HALVINGS):
        middle_s = (low_s * high_s) ** 0.5
        if actors.counts @ find(middle_s)[0] >= 1:
            high_s = middle_s
        else:
            low_s = middle_s
    best, level = np.divmod(find(high_s)[1], shares.costs_s.shape[2])
    return best, level
