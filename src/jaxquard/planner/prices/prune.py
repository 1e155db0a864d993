"""Chooses the strategies that are worth the price of a compiler or of a measurement.

Those are, by the coarse prices of a segment: the Pareto frontier of time and bytes; then for each choice of its first
and last block, whose layouts its neighbours see, the fastest; then other fast ones; up to a number for each kind of
segment, and within a factor of the fastest. Whatever a known recipe uses stays.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jaxquard.intraop.segments.strategies import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneSettings:
    """Limits of what is priced finely.

    Attributes:
        slow_factor: strategies that are slower than the fastest by more than this are left out.
        max_strategies: of a kind of segment, beside those of known recipes.
    """

    slow_factor: float = 2.0
    max_strategies: int = 12


def prune_strategies(
    coarse: Mapping[Strategy, tuple[float, int]], *, recipes: Collection[Strategy], settings: PruneSettings
) -> tuple[Strategy, ...]:
    """Returns the strategies to price finely, in the order of `coarse`.

    Args:
        coarse: the seconds and the bytes of each.
        recipes: strategies of known recipes, which stay.
    """
    fastest_s = min(time_s for time_s, _ in coarse.values())
    order = sorted(coarse, key=coarse.__getitem__)
    frontier, smallest = [], None
    for strategy in order:
        size = coarse[strategy][1]
        if smallest is None or size < smallest:
            frontier.append(strategy)
            smallest = size
    near = [strategy for strategy in order if coarse[strategy][0] <= settings.slow_factor * fastest_s]
    # The smallest of all stays, however slow: it may be the only one that fits.
    ends = {(strategy[0], strategy[-1]): strategy for strategy in reversed(near)}
    fastest = sorted(ends.values(), key=coarse.__getitem__)
    first = [*frontier[-1:], *(found for found in near if found in set(frontier)), *fastest, *near]
    kept = set(list(dict.fromkeys(first))[: settings.max_strategies])
    kept.update(strategy for strategy in recipes if strategy in coarse)
    return tuple(strategy for strategy in coarse if strategy in kept)
