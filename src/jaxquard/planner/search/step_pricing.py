"""The prices of a step for every mesh of an actor and every number of microbatches, each made once."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from jax.sharding import AbstractMesh

from jaxquard.cluster import Cluster
from jaxquard.errors import PlanError, ShardingError
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.prices.step_costs import StepCosts
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.search.live_pricing import LivePricing, StrategiesByBlocks, abstract_mesh_of
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.step.stage_boundaries import StageBoundary
from jaxquard.planner.tables.mesh_prices import MeshKey, MeshPrices, PricesKey
from jaxquard.planner.wishes import Wishes
from jaxquard.pricing import OnProgress, Pricer

MakePricer = Callable[[AbstractMesh], Pricer]


class StepPricing:
    """The prices of a step for a cluster.

    Args:
        make_pricer: of a mesh, asked for the strategies that the closed form leaves, and only where `find` is; None for
            the closed form alone.
        ignores_marks: stages may begin at any segment, also where the step has marks of its own.
        recipes: names of known assignments; blocks then have the choices of these alone. None for all choices.

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
        on_progress: OnProgress | None = None,
    ) -> None:
        self.problem, self.cluster, self.wishes = problem, cluster, wishes
        self._make_pricer, self._on_progress = make_pricer, on_progress
        self._live = LivePricing(problem, cluster, wishes=wishes, ignores_marks=ignores_marks, recipes=recipes)
        # Fine prices are found by the key of the coarse ones.
        self._coarse_prices: dict[PricesKey, MeshPrices | None] = {}
        self._fine_prices: dict[PricesKey, MeshPrices | None] = {}
        self.failures: dict[MeshKey, str] = {}

    def of_recipes(self, recipes: Collection[str]) -> "StepPricing":
        """Returns prices of known assignments alone, whether or not they follow the user's wishes for strategies."""
        live = self._live.of_recipes(recipes)
        found = StepPricing(
            self.problem,
            self.cluster,
            wishes=live.wishes,
            make_pricer=self._make_pricer,
            on_progress=self._on_progress,
        )
        found._live = live
        return found

    @property
    def flops(self) -> float:
        """The FLOPs of a step, without recomputation."""
        return self._live.flops

    def find_boundaries(self) -> tuple[StageBoundary, ...]:
        """Finds the places where stages may begin.

        Raises:
            PlanError: if a wish for a strategy names nothing, or contradicts another.
        """
        return self._live.find_boundaries()

    @property
    def num_programs(self) -> int:
        """The programs that were priced."""
        known = self._coarse_prices if self._make_pricer is None else self._fine_prices
        return sum(found.facts.num_programs for found in known.values() if found is not None)

    def find(self, axes: Mapping[str, int], num_microbatches: int) -> MeshPrices | None:
        """Returns the prices on a mesh, of the finest pricer; None if the step cannot be sharded over it, or run."""
        coarse = self.find_coarse(axes, num_microbatches)
        return None if coarse is None else self.refine(coarse)

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

    def refine(self, coarse: MeshPrices) -> MeshPrices | None:
        """Asks the finest pricer for the same strategies; None if a segment has no price."""
        if self._make_pricer is None:
            return coarse
        if coarse.key not in self._fine_prices:
            pricer = self._make_pricer(abstract_mesh_of(coarse.key.axes))
            self._fine_prices[coarse.key] = self._refine(coarse, pricer)
        return self._fine_prices[coarse.key]

    def costs(
        self, axes: Mapping[str, int], num_microbatches: int, *, storage: Storage, recompute: Recompute
    ) -> StepCosts | None:
        """Returns the costs of all segments by the prices of `find`; None if it has none."""
        found = self.find(axes, num_microbatches)
        return None if found is None else found.costs(storage=storage, recompute=recompute)

    def _find(self, key: PricesKey, *, only: StrategiesByBlocks | None = None) -> MeshPrices | None:
        if key not in self._coarse_prices:
            try:
                self._coarse_prices[key] = self._live.price(key, only=only)
            except (ShardingError, PlanError) as error:
                self.failures[key.mesh_key] = str(error)
                self._coarse_prices[key] = None
        return self._coarse_prices[key]

    def _refine(self, coarse: MeshPrices, pricer: Pricer) -> MeshPrices | None:
        priced = coarse.priced().refine(pricer, on_progress=self._on_progress)
        reason = priced.find_unpriced()
        if reason:
            self.failures[coarse.key.mesh_key] = reason
            return None
        facts = replace(coarse.facts, provenance=priced.provenance, num_programs=priced.prices.num_programs)
        return MeshPrices(coarse.key, facts, price=lambda: priced)
