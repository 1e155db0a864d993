"""The prices of a step for every mesh of an actor and every number of microbatches, each made once."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from jax.sharding import AbstractMesh

from jaxquard.cluster import Cluster
from jaxquard.errors import PlanError, ShardingError
from jaxquard.intraop.blocks.unplanned_matmuls import name_loops
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.step.fingerprint import StepFingerprint, fingerprint_structure
from jaxquard.planner.prices.step_costs import PricedStrategies, StepCosts
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.search.deadline import Deadline
from jaxquard.planner.search.live_pricing import LivePricing, StrategiesByBlocks, abstract_mesh_of
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.step.stage_boundaries import StageStart
from jaxquard.planner.tables.mesh_prices import MeshKey, MeshPrices, PricesKey
from jaxquard.planner.tables.step_keys import find_loop_key, find_step_keys
from jaxquard.planner.tables.step_tables import StepFacts, StepTables
from jaxquard.planner.wishes import Wishes
from jaxquard.pricing import PriceCache, Pricer
from jaxquard.pricing.batch_pricer import BatchPricer
from jaxquard.progress import Move

MakePricer = Callable[[AbstractMesh], Pricer]


class StepPricing:
    """The prices of a step for a cluster.

    Args:
        make_pricer: of a mesh, asked for the strategies that the closed form leaves, and only where `find` is; None for
            the closed form alone.
        ignores_marks: stages may begin at any segment, also where the step has marks of its own.
        recipes: names of known assignments; blocks then have the choices of these alone. None for all choices.
        cache: where tables of prices are kept, by `keep_tables`; None for nowhere.
        is_new: what the cache has of the step is made anew.
        move: called with (done, total, program) while the pricer is at work.

    Attributes:
        failures: meshes and microbatches for which the step cannot be priced, with the reason.
    """

    def __init__(
        self,
        problem: PlanProblem,
        cluster: Cluster,
        *,
        wishes: Wishes,
        make_pricer: MakePricer | None = None,
        ignores_marks: bool = False,
        recipes: Collection[str] | None = None,
        cache: PriceCache | None = None,
        is_new: bool = False,
        move: Move = lambda done, total, name: None,
    ) -> None:
        self.problem, self.cluster, self.wishes = problem, cluster, wishes
        self._make_pricer, self._move = make_pricer, move
        self._ignores_marks, self._cache, self._is_new = ignores_marks, cache, is_new
        self._live = LivePricing(problem, cluster, wishes=wishes, ignores_marks=ignores_marks, recipes=recipes)
        self._tables = _find_tables(self._live, cache, is_new=is_new)
        self._step_facts: StepFacts | None = None
        self._parts: list[StepPricing] = []
        # Fine prices are found by the key of the coarse ones.
        self._coarse_prices: dict[PricesKey, MeshPrices | None] = {}
        self._fine_prices: dict[PricesKey, MeshPrices | None] = {}
        # Numbers of microbatches whose tables were read, and the keys of the step with them.
        self._kept_counts: set[int] = set()
        self._loop_keys: dict[tuple[int, Recompute], str | None] = {}
        self.failures: dict[MeshKey, str] = {}

    def of_recipes(self, recipes: Collection[str]) -> "StepPricing":
        """Returns prices of known assignments alone, whether or not they follow the user's wishes for strategies."""
        found = StepPricing(
            self.problem,
            self.cluster,
            wishes=replace(self.wishes, strategies=()),
            make_pricer=self._make_pricer,
            ignores_marks=self._ignores_marks,
            recipes=recipes,
            cache=self._cache,
            is_new=self._is_new,
            move=self._move,
        )
        found._live.share_with(self._live)
        found._step_facts = self._find_step()
        self._parts.append(found)
        return found

    @property
    def flops(self) -> float:
        """The FLOPs of a step, without recomputation."""
        return self._find_step().flops

    def find_boundaries(self) -> tuple[StageStart, ...]:
        """Finds the places where stages may begin.

        Raises:
            PlanError: if a wish for a strategy names nothing, or contradicts another.
        """
        return self._find_step().starts

    def name_loops(self) -> str:
        """Returns the loops of the step with products inside, by their lines; "" if there are none."""
        return name_loops(self.problem.trace(self.problem.counts[0]).traced.jaxpr.eqns)

    def are_current(self, num_microbatches: int, recompute: Recompute) -> bool:
        """Says whether prices from the cache are of the step as it is with so many microbatches.

        The cache is found by the trace with the first number alone.
        """
        if num_microbatches not in self._kept_counts:
            return True
        key = self._loop_key(num_microbatches, recompute)
        kept = self._tables.find_loop(num_microbatches, recompute)
        if kept is None and recompute is not Recompute.NONE and self.are_current(num_microbatches, Recompute.NONE):
            self._keep_loop(num_microbatches, recompute)
            return True
        return kept is not None and kept == key

    def find_fingerprint(self, num_microbatches: int, recompute: Recompute) -> StepFingerprint:
        """Returns the fingerprint of a plan with so many microbatches; from the cache, where it has it."""
        key = self._loop_key(num_microbatches, recompute)
        found = None if key is None else self._tables.find_fingerprint(key)
        if found is None:
            found = fingerprint_structure(self.problem.trace(num_microbatches, recompute).traced)
            if key is not None:
                self._tables.keep_fingerprint(key, found)
        return found

    def _loop_key(self, num_microbatches: int, recompute: Recompute) -> str | None:
        if not self._tables.are_kept:
            return None
        name = num_microbatches, recompute
        if name not in self._loop_keys:
            self._loop_keys[name] = find_loop_key(self.problem.trace_loop(num_microbatches, recompute))
        return self._loop_keys[name]

    def _keep_loop(self, num_microbatches: int, recompute: Recompute) -> None:
        key = self._loop_key(num_microbatches, recompute)
        if key is not None:
            self._tables.keep_loop(num_microbatches, recompute, key)

    def keep_tables(self) -> None:
        """Keeps the prices, and all costs that were asked for, in the cache."""
        self._tables.save()
        for part in self._parts:
            part.keep_tables()

    @property
    def num_programs(self) -> int:
        """The programs that were priced."""
        known = self._coarse_prices if self._make_pricer is None else self._fine_prices
        return sum(found.facts.num_programs for found in known.values() if found is not None)

    @property
    def is_fine(self) -> bool:
        """True if there is a finer pricer than the closed form."""
        return self._make_pricer is not None

    def give_up_refining(self) -> None:
        """Leaves all prices that are asked for from here on to the closed form."""
        self._make_pricer = None
        for part in self._parts:
            part.give_up_refining()

    def find(
        self, axes: Mapping[str, int], num_microbatches: int, *, deadline: Deadline | None = None
    ) -> MeshPrices | None:
        """Returns the prices on a mesh, of the finest pricer; None if the step cannot be sharded over it, or run.

        Args:
            deadline: of that pricer; it notes the programs that are left out.
        """
        coarse = self.find_coarse(axes, num_microbatches)
        return None if coarse is None else self.refine(coarse, deadline=deadline)

    def find_coarse(
        self, axes: Mapping[str, int], num_microbatches: int, *, ranked_by: MeshKey | None = None
    ) -> MeshPrices | None:
        """Returns the prices on a mesh in closed form; None if the step cannot be sharded over it.

        Args:
            ranked_by: another mesh or number of microbatches; the strategies that are left out with it are not ranked
                again.
        """
        own = PricesKey(axes=tuple(axes.items()), num_microbatches=num_microbatches)
        is_own = ranked_by is None or ranked_by == own.mesh_key or own in self._coarse_prices
        if is_own:
            return self._find(own)
        like = self.find_coarse(dict(ranked_by[0]), ranked_by[1])
        return self._find(replace(own, ranked_by=ranked_by), only=None if like is None else like.facts.strategies)

    def find_recipes(self, axes: Mapping[str, int], num_microbatches: int) -> MeshPrices | None:
        """Returns the prices of the known recipes alone, in closed form; None if the step cannot be sharded so."""
        return self._find(PricesKey(axes=tuple(axes.items()), num_microbatches=num_microbatches, only_recipes=True))

    def refine(self, coarse: MeshPrices, *, deadline: Deadline | None = None) -> MeshPrices | None:
        """Asks the finest pricer for the same strategies; None if a segment has no price.

        Args:
            deadline: as of `find`; strategies without a price by then are left out.
        """
        if self._make_pricer is None:
            return coarse
        if coarse.key not in self._fine_prices:
            try:
                pricer = self._make_pricer(abstract_mesh_of(coarse.key.axes))
            except PlanError as error:
                # Of some meshes there are fewer devices to measure on than an actor has.
                self._fine_prices[coarse.key] = self._noted(coarse.key, str(error))
            else:
                self._fine_prices[coarse.key] = self._refine(coarse, pricer, deadline or Deadline())
        return self._fine_prices[coarse.key]

    def costs(
        self, axes: Mapping[str, int], num_microbatches: int, *, storage: Storage, recompute: Recompute
    ) -> StepCosts | None:
        """Returns the costs of all segments by the prices of `find`; None if it has none."""
        found = self.find(axes, num_microbatches)
        return None if found is None else found.costs(storage=storage, recompute=recompute)

    def _find_step(self) -> StepFacts:
        if self._step_facts is None:
            self._step_facts = self._tables.find_step()
        if self._step_facts is None:
            self._step_facts = StepFacts(starts=self._live.find_boundaries(), flops=self._live.flops)
            self._tables.keep_step(self._step_facts)
        return self._step_facts

    def _find(self, key: PricesKey, *, only: StrategiesByBlocks | None = None) -> MeshPrices | None:
        if key not in self._coarse_prices:
            found = self._tables.find(key, price=partial(self._live.price_strategies, key, only=only))
            if found is None:
                found = self._try_price(key, only)
                self._tables.add(key, found)
                if self._tables.find_loop(key.num_microbatches, Recompute.NONE) is None:
                    self._keep_loop(key.num_microbatches, Recompute.NONE)
            else:
                self._kept_counts.add(key.num_microbatches)
            self._coarse_prices[key] = self._noted(key, found)
        return self._coarse_prices[key]

    def _try_price(self, key: PricesKey, only: StrategiesByBlocks | None) -> MeshPrices | str:
        """Returns the prices on a mesh, or why there are none."""
        try:
            return self._live.price(key, only=only)
        except (ShardingError, PlanError) as error:
            return str(error)

    def _refine(self, coarse: MeshPrices, pricer: Pricer, deadline: Deadline) -> MeshPrices | None:
        provenance = pricer.provenance_key() if isinstance(pricer, BatchPricer) else None
        key = replace(coarse.key, pricer=provenance or "")

        def price() -> PricedStrategies:
            return coarse.priced().refine(pricer, on_progress=lambda one: one.move(self._move), end_s=deadline.end_s)

        found = None if provenance is None else self._tables.find(key, price=price)
        if found is not None:
            return self._noted(key, found)
        priced = price()
        reason = priced.find_unpriced()
        if priced.num_late:
            axes = " x ".join(f"{axis} {size}" for axis, size in coarse.key.axes)
            deadline.left_out.append(
                f"the time budget left out {priced.num_late} programs of the mesh {axes} with "
                f"{coarse.key.num_microbatches} microbatches"
            )
            if reason:
                return None
        facts = replace(coarse.facts, provenance=priced.provenance, num_programs=priced.prices.num_programs)
        fine = reason or MeshPrices(key, facts, price=lambda: priced)
        # A failure may be over when it is tried again.
        if isinstance(pricer, BatchPricer) and provenance is not None and all(map(pricer.is_lasting, priced.failures)):
            self._tables.add(key, fine)
        return self._noted(key, fine)

    def _noted(self, key: PricesKey, found: MeshPrices | str) -> MeshPrices | None:
        if isinstance(found, MeshPrices):
            return found
        self.failures[key.mesh_key] = found
        return None


def _find_tables(live: LivePricing, cache: PriceCache | None, *, is_new: bool) -> StepTables:
    """Returns the tables of a step; those of a step that cannot be known again keep nothing."""
    if cache is None:
        return StepTables(None, None)
    looped = live.problem.trace_loop(live.problem.counts[0])
    keys = find_step_keys(
        looped,
        rows=live.problem.rows,
        cluster=live.cluster,
        wishes=live.wishes,
        ignores_marks=live.ignores_marks,
        recipes=live.recipes,
    )
    return StepTables(cache.folder / "tables", keys, is_new=is_new)
