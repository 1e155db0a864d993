"""Finds the fastest configurations of a plan, what else was considered beside them, and what stands against all."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxquard.planner.record.plan import PlanAlternative, PlanSearchLog
from jaxquard.planner.stages.configurations.alternatives import find_alternatives
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.planner.stages.configurations.configuration_search import ConfigurationSearch, Costs, PlanFinalist
from jaxquard.planner.stages.memory_terms import MinimumMemory
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
        smallest: if nothing fits, the configuration of the smallest memory that was found, and that memory.
        log: counts of the work, and what a time budget left out.
        priced: the configurations with a time of their own.
        unpriced: those without costs, or for which no time was left.
    """

    finalists: tuple[PlanFinalist, ...]
    alternatives: tuple[PlanAlternative, ...] = ()
    families: Mapping[str, PlanFinalist | None] = field(default_factory=dict)
    smallest: tuple[PlanConfiguration, MinimumMemory] | None = None
    log: PlanSearchLog = field(default_factory=PlanSearchLog)
    priced: frozenset[PlanConfiguration] = field(default=frozenset(), repr=False)
    unpriced: frozenset[PlanConfiguration] = field(default=frozenset(), repr=False)

    @property
    def best(self) -> PlanFinalist | None:
        """The fastest."""
        return self.finalists[0] if self.finalists else None


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
    on_progress: Callable[[int, int, str], None] = lambda done, total, name: None,
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
    priced, left_out = search.priced, [*search.left_out]
    unpriced = frozenset(search.unpriced - priced)
    found: dict[str, PlanFinalist | None] = {}
    for name, accepts in (families or {}).items():
        members = () if search.is_late() else [one for one in space if accepts(one)]
        found[name] = next(iter(search.find(members, 1, is_family=True)), None)
    if families and search.is_late():
        left_out.append(f"the time budget ended among the best of {', '.join(families)}")

    alternatives, notes = (), ()
    if finalists:
        for num_left in reversed(range(_MAX_MOVES)):
            alternatives, missing, faster = find_alternatives(search, space, finalists[0])
            notes = say_missing(missing)
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
        log=make_log(search, len(space), priced, unpriced, left_out),
        priced=priced,
        unpriced=unpriced,
    )


def say_missing(parts: Sequence[str]) -> tuple[str, ...]:
    """Notes the parts for whose alternatives there was no time."""
    return (f"the time budget left out alternatives to {', '.join(parts)}",) if parts else ()


def make_log(
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
