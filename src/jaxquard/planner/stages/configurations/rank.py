"""Ranks configurations by their estimates: for a caller that looks at the best of them by other costs.

As `search` does, but nothing is played until it is asked for: a step of many microbatches takes as long to play as its
stages take to find.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from jaxquard.planner.record.plan import PlanAlternative, PlanSearchLog
from jaxquard.planner.stages.configurations.alternatives import PART_VALUES, find_alternatives
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.planner.stages.configurations.configuration_search import ConfigurationSearch, Costs
from jaxquard.planner.stages.configurations.search import make_log, say_missing
from jaxquard.planner.stages.memory_terms import MinimumMemory
from jaxquard.simulate.actor_link import NO_LINKS, ActorLinks


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterAlternatives:
    """Alternatives that were found after a ranking.

    Attributes:
        missing: notes on the parts for which the time was too short.
        num_simulated: assignments that were played for them.
    """

    found: tuple[PlanAlternative, ...] = ()
    missing: tuple[str, ...] = ()
    num_simulated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedConfigurations:
    """The answer of a ranking.

    Attributes:
        configurations: the fastest by their estimates; empty if nothing fits.
        families: for each family that was asked for, its fastest; None if none of it fits.
        smallest: if nothing fits, the configuration of the smallest memory that was found, and that memory.
        log: counts of the work, and what a time budget left out.
        priced: the configurations with a time of their own.
        unpriced: those without costs, or for which no time was left.
        find_alternatives: to the parts of a configuration that are not among those given, within some seconds. None at
            all where another one plays faster.
    """

    configurations: tuple[PlanConfiguration, ...]
    families: Mapping[str, PlanConfiguration | None]
    smallest: tuple[PlanConfiguration, MinimumMemory] | None
    log: PlanSearchLog
    priced: frozenset[PlanConfiguration] = field(repr=False)
    unpriced: frozenset[PlanConfiguration] = field(repr=False)
    find_alternatives: Callable[[PlanConfiguration, Collection[str], float | None], LaterAlternatives] = field(
        repr=False
    )


def rank_configurations(
    configurations: Iterable[PlanConfiguration],
    costs: Costs,
    *,
    bound: Callable[[PlanConfiguration], float] = lambda configuration: 0.0,
    smallest_bytes: Callable[[PlanConfiguration], float] = lambda configuration: 0.0,
    memory_limit_bytes: int | None = None,
    links: Callable[[PlanConfiguration], ActorLinks] = lambda configuration: NO_LINKS,
    time_budget_s: float | None = None,
    num_finalists: int = 5,
    families: Mapping[str, Callable[[PlanConfiguration], bool]] | None = None,
    as_used: Callable[[PlanConfiguration], PlanConfiguration] | None = None,
    on_progress: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> RankedConfigurations:
    """Finds the fastest configurations by their estimates.

    Args:
        smallest_bytes: a bound on the memory of a device, from below, without costs; what exceeds the limit is not
            asked for its costs, as long as something fits. The other arguments are those of `search_configurations`.
    """
    space = tuple(configurations)
    search = ConfigurationSearch(
        costs,
        bound=bound,
        memory_limit_bytes=memory_limit_bytes,
        links=links,
        time_budget_s=time_budget_s,
        as_used=as_used,
    )
    limit_bytes = math.inf if memory_limit_bytes is None else memory_limit_bytes
    fitting = tuple(one for one in space if smallest_bytes(one) <= limit_bytes)
    estimates = search.rank(fitting, on_progress)
    ranked = tuple(estimates)[:num_finalists]
    priced, left_out = search.priced, [*search.left_out]
    unpriced = frozenset(search.unpriced - priced)
    found: dict[str, PlanConfiguration | None] = {}
    for name, accepts in (families or {}).items():
        members = () if search.is_late() else [one for one in fitting if accepts(one)]
        found[name] = next(iter(search.rank(members, is_family=True)), None)
    if families and search.is_late():
        left_out.append(f"the time budget ended among the best of {', '.join(families)}")

    def find_later(chosen: PlanConfiguration, known: Collection[str], budget_s: float | None) -> LaterAlternatives:
        open_parts = tuple(part for part in PART_VALUES if part not in known)
        if chosen not in ranked or not open_parts:
            return LaterAlternatives()
        search.allow_more(budget_s)
        before, played = search.num_simulated, []
        for one in ranked:
            if search.is_late():
                num_simulated = search.num_simulated - before
                return LaterAlternatives(missing=say_missing(open_parts), num_simulated=num_simulated)
            played.append(search.play(one, estimates[one]))
        best = min(filter(None, played), key=lambda one: one.time_s, default=None)
        others, missing = (), ()
        if best is not None and best.configuration == chosen:
            others, missing, _ = find_alternatives(search, space, best, known=known)
        return LaterAlternatives(
            found=others, missing=say_missing(missing), num_simulated=search.num_simulated - before
        )

    return RankedConfigurations(
        configurations=ranked,
        families=found,
        smallest=None if ranked else search.find_smallest(space),
        log=make_log(search, len(space), priced, unpriced, left_out),
        priced=priced,
        unpriced=unpriced,
        find_alternatives=find_later,
    )
