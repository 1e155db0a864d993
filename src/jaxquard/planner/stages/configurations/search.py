"""Finds the fastest configurations of a plan, what else was considered beside them, and what stands against all."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jaxquard.planner.record.plan import PlanAlternative, PlanSearchLog
from jaxquard.planner.stages.configurations.alternatives import PART_VALUES, find_alternatives
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.planner.stages.configurations.configuration_search import (
    ConfigurationSearch,
    Costs,
    OnProgress,
    PlanFinalist,
    no_progress,
)
from jaxquard.simulate.actor_link import NO_LINKS, ActorLinks

# How often the best one may be left for one that differs in a part and plays faster.
_MAX_MOVES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSearchResult:
    """The answer of a search.

    Attributes:
        finalists: the fastest first; empty if nothing fits.
        alternatives: to each part of the fastest one.
        families: for each family that was asked for, its fastest; None if none of it fits.
        smallest: if nothing fits, the one of the smallest memory that was found.
        log: counts of the work, and what a time budget left out.
        priced: the configurations with a time of their own.
        unpriced: those without costs, or for which no time was left.
    """

    finalists: tuple[PlanFinalist, ...]
    alternatives: tuple[PlanAlternative, ...] = ()
    families: Mapping[str, PlanFinalist | None] = field(default_factory=dict)
    smallest: PlanFinalist | None = None
    log: PlanSearchLog = field(default_factory=PlanSearchLog)
    priced: frozenset[PlanConfiguration] = field(default=frozenset(), repr=False)
    unpriced: frozenset[PlanConfiguration] = field(default=frozenset(), repr=False)

    @property
    def best(self) -> PlanFinalist | None:
        """The fastest."""
        return self.finalists[0] if self.finalists else None


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
        smallest: if nothing fits, the one of the smallest memory that was found.
        log: counts of the work, and what a time budget left out.
        priced: the configurations with a time of their own.
        unpriced: those without costs, or for which no time was left.
        find_alternatives: to the parts of a configuration that are not among those given, within some seconds. None at
            all where another one plays faster.
    """

    configurations: tuple[PlanConfiguration, ...]
    families: Mapping[str, PlanConfiguration | None]
    smallest: PlanFinalist | None
    log: PlanSearchLog
    priced: frozenset[PlanConfiguration] = field(repr=False)
    unpriced: frozenset[PlanConfiguration] = field(repr=False)
    find_alternatives: Callable[[PlanConfiguration, Collection[str], float | None], LaterAlternatives] = field(
        repr=False
    )


def search_configurations(
    configurations: Iterable[PlanConfiguration],
    costs: Costs,
    *,
    bound: Callable[[PlanConfiguration], float] = lambda configuration: 0.0,
    memory_limit_bytes: int | None = None,
    links: Callable[[PlanConfiguration], ActorLinks] = lambda configuration: NO_LINKS,
    time_budget_s: float | None = None,
    num_finalists: int = 5,
    families: Mapping[str, Callable[[PlanConfiguration], bool]] | None = None,
    as_used: Callable[[PlanConfiguration], PlanConfiguration] | None = None,
    finds_smallest: bool = True,
    on_progress: OnProgress = no_progress,
) -> PlanSearchResult:
    """Finds the fastest configurations and their assignments.

    Args:
        costs: of the segments under a configuration; asked once for those that agree in `priced_as`. None at all
            leaves the configuration out.
        bound: on the time of a step, from below, without prices.
        memory_limit_bytes: of a device; None for no limit.
        links: between the actors of a configuration.
        time_budget_s: after which configurations, families and alternatives are left out; at least one is priced.
        num_finalists: that are played.
        families: conditions; the fastest configuration that meets each is found as well.
        as_used: returns a configuration with the same costs of a microbatch, whose costs are known sooner: what they
            rule out is not asked for its own. None if there is none.
        finds_smallest: if nothing fits, the smallest memory that would do is looked for.
        on_progress: called with the configurations done, their number, and the one at hand.
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
    finalists = search.find(space, num_finalists, on_progress)
    priced, unpriced, left_out = search.priced, frozenset(search.unpriced - search.priced), [*search.left_out]
    find = partial(search.find, num_finalists=1, is_brief=True)
    found, notes = _find_families(search, space, families or {}, find)
    left_out += notes
    alternatives = ()
    if finalists:
        for num_left in reversed(range(_MAX_MOVES)):
            alternatives, missing, faster = find_alternatives(search, space, finalists[0])
            notes = _say_missing(missing)
            if not faster or not num_left:
                break
            # What differs in one part alone, and plays faster than its estimate said, is the best from here on.
            finalists = (min(faster, key=lambda one: one.time_s), *finalists)[:num_finalists]
        left_out += notes
    return PlanSearchResult(
        finalists=finalists,
        alternatives=alternatives,
        families=found,
        smallest=None if finalists or not finds_smallest else search.find_smallest(space),
        log=_make_log(search, len(space), priced, unpriced, left_out),
        priced=priced,
        unpriced=unpriced,
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
    on_progress: OnProgress = no_progress,
) -> RankedConfigurations:
    """Finds the fastest configurations by their estimates: for a caller that looks at the best of them by other costs.

    As `search_configurations` does, but nothing is played until it is asked for: a step of many microbatches takes as
    long to play as its stages take to find.

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
    fitting = tuple(one for one in space if memory_limit_bytes is None or smallest_bytes(one) <= memory_limit_bytes)
    ranked = search.rank(fitting, on_progress)[:num_finalists]
    priced, unpriced, left_out = search.priced, frozenset(search.unpriced - search.priced), [*search.left_out]
    found, notes = _find_families(search, fitting, families or {}, partial(search.rank, is_brief=True))
    left_out += notes

    def find_later(chosen: PlanConfiguration, known: Collection[str], budget_s: float | None) -> LaterAlternatives:
        open_parts = tuple(part for part in PART_VALUES if part not in known)
        if chosen not in ranked or not open_parts:
            return LaterAlternatives()
        search.allow_more(budget_s)
        before, played = search.num_simulated, []
        others, missing = (), open_parts
        while len(played) < len(ranked) and not search.is_late():
            played.append(search.play(ranked[len(played)]))
        if len(played) == len(ranked):
            best = min(filter(None, played), key=lambda one: one.time_s, default=None)
            others, missing = (), ()
            if best is not None and best.configuration == chosen:
                others, missing, _ = find_alternatives(search, space, best, known=known)
        num_simulated = search.num_simulated - before
        return LaterAlternatives(found=others, missing=_say_missing(missing), num_simulated=num_simulated)

    return RankedConfigurations(
        configurations=ranked,
        families=found,
        smallest=None if ranked else search.find_smallest(space),
        log=_make_log(search, len(space), priced, unpriced, left_out),
        priced=priced,
        unpriced=unpriced,
        find_alternatives=find_later,
    )


def _find_families(
    search: ConfigurationSearch,
    space: Sequence[PlanConfiguration],
    families: Mapping[str, Callable[[PlanConfiguration], bool]],
    find: Callable[[Sequence[PlanConfiguration]], Sequence[Any]],
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the fastest of each family, and a note if the time was too short for some."""
    found: dict[str, Any] = {}
    for name, accepts in families.items():
        members = () if search.is_late() else [one for one in space if accepts(one)]
        found[name] = next(iter(find(members)), None)
    is_short = families and search.is_late()
    return found, (f"the time budget ended among the best of {', '.join(families)}",) if is_short else ()


def _say_missing(parts: Sequence[str]) -> tuple[str, ...]:
    """Notes the parts for whose alternatives there was no time."""
    return (f"the time budget left out alternatives to {', '.join(parts)}",) if parts else ()


def _make_log(
    search: ConfigurationSearch,
    num_seen: int,
    priced: Collection[PlanConfiguration],
    unpriced: Collection[PlanConfiguration],
    left_out: Iterable[str],
) -> PlanSearchLog:
    """Returns the counts of a search that has ended."""
    return PlanSearchLog(
        num_seen=num_seen,
        num_pruned=num_seen - len(priced) - len(unpriced),
        num_priced=len(priced),
        num_unpriced=len(unpriced),
        num_simulated=search.num_simulated,
        time_s=search.time_s,
        left_out=tuple(left_out),
    )
