"""Prices a step for every mesh of an actor and every number of microbatches, each once."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from jax.sharding import AbstractMesh, AxisType

from jaxquard.cluster import Cluster
from jaxquard.errors import PlanError, ShardingError
from jaxquard.intraop.segments.analysis import Analysis, StepAnalyser
from jaxquard.intraop.segments.block_names import BlockNames, names_of_blocks
from jaxquard.intraop.segments.interfaces import SegmentInterfaces
from jaxquard.intraop.segments.strategies import Strategy
from jaxquard.intraop.segments.tune_products import tune_products
from jaxquard.intraop.shardings.baselines import baselines, tensor_choices
from jaxquard.intraop.shardings.layouts import Assignment, Storage
from jaxquard.planner.prices.price_strategies import price_strategies
from jaxquard.planner.prices.prune import PruneSettings
from jaxquard.planner.prices.step_costs import PricedStrategies, StepCosts
from jaxquard.planner.prices.step_flops import step_flops
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.step.stage_boundaries import StageBoundary, analyse_microbatch, find_stage_boundaries
from jaxquard.planner.wishes import Wishes
from jaxquard.pricing import OnProgress, Pricer
from jaxquard.pricing.roofline.roofline_pricer import RooflinePricer

# The axes of a mesh and their sizes.
MeshAxes = tuple[tuple[str, int], ...]
# A mesh, and a number of microbatches.
MeshKey = tuple[MeshAxes, int]
MakePricer = Callable[[AbstractMesh], Pricer]
BATCH_AXIS = "data"
_MIN_SEGMENTS = 4
# Storages are priced, and stages assigned, with the strategies that this leaves.
_PRUNE = PruneSettings(slow_factor=2.0, max_strategies=12)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeshPrices:
    """The prices of a step on one mesh, with so many microbatches.

    Attributes:
        priced: the strategies of every segment.
        names: of the blocks, as the user knows them.
        can_begin_stage: for each segment, by its number.
    """

    priced: PricedStrategies = field(repr=False)
    names: Mapping[int, BlockNames] = field(repr=False)
    can_begin_stage: Mapping[int, bool]

    @property
    def analysis(self) -> Analysis:
        return self.priced.analysis


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
        self.problem, self.cluster, self._only_recipes = problem, cluster, recipes
        self._wishes, self._make_pricer = wishes, make_pricer
        self._ignores_marks, self._on_progress = ignores_marks, on_progress
        self._coarse_prices: dict[tuple[MeshKey, MeshKey | None], MeshPrices | None] = {}
        self._fine_prices: dict[int, MeshPrices | None] = {}
        self._recipe_prices: dict[MeshKey, MeshPrices | None] = {}
        self._costs: dict[tuple[int, Storage, Recompute], StepCosts] = {}
        self._flops: float | None = None
        self._coarse: RooflinePricer | None = None
        self._analysers: dict[int, StepAnalyser] = {}
        # Meshes with the same segments share what is read from the step.
        self._like: dict[SegmentInterfaces, PricedStrategies] = {}
        self._names: dict[SegmentInterfaces, Mapping[int, BlockNames]] = {}
        self._tensor_choices: dict[SegmentInterfaces, Mapping[int, str]] = {}
        self._boundaries: dict[object, tuple[StageBoundary, ...]] = {}
        self.failures: dict[MeshKey, str] = {}

    @property
    def wishes(self) -> Wishes:
        """The user's wishes, which its prices follow."""
        return self._wishes

    def of_recipes(self, recipes: Collection[str]) -> "StepPricing":
        """Returns prices of known assignments alone, whether or not they follow the user's wishes for strategies."""
        found = StepPricing(
            self.problem,
            self.cluster,
            wishes=replace(self._wishes, strategies=()),
            make_pricer=self._make_pricer,
            ignores_marks=self._ignores_marks,
            recipes=recipes,
            on_progress=self._on_progress,
        )
        found._analysers, found._flops = self._analysers, self._flops
        return found

    @property
    def flops(self) -> float:
        """The FLOPs of a step, without recomputation."""
        if self._flops is None:
            count = self.problem.counts[0]
            analysis = self._analyse({BATCH_AXIS: 1}, count)
            self._flops = count * step_flops(analysis.graph)
        return self._flops

    def find_boundaries(self) -> tuple[StageBoundary, ...]:
        """Finds the places where stages may begin.

        Raises:
            PlanError: if a wish for a strategy names nothing, or contradicts another.
        """
        count = self.problem.counts[0]
        analysis = self._analyse({BATCH_AXIS: 1}, count)
        self._wishes.strategy_filter(self._find_names(analysis))
        return self._find_boundaries(analysis, count)

    @property
    def num_programs(self) -> int:
        """The programs that were priced."""
        coarse = [*self._coarse_prices.values(), *self._recipe_prices.values()]
        known = coarse if self._make_pricer is None else self._fine_prices.values()
        return sum(found.priced.prices.num_programs for found in known if found is not None)

    def find(self, axes: Mapping[str, int], num_microbatches: int) -> MeshPrices | None:
        """Returns the prices on a mesh, of the finest pricer; None if the step cannot be sharded over it, or run."""
        coarse = self.find_coarse(axes, num_microbatches)
        return None if coarse is None else self.refine(coarse, num_microbatches)

    def find_coarse(
        self, axes: Mapping[str, int], num_microbatches: int, *, ranked_by: MeshKey | None = None
    ) -> MeshPrices | None:
        """Returns the prices on a mesh in closed form; None if the step cannot be sharded over it.

        Args:
            ranked_by: another mesh or number of microbatches; the strategies that are left out with it are not ranked
                again.
        """
        mesh_key = tuple(axes.items()), num_microbatches
        if ranked_by == mesh_key or (mesh_key, None) in self._coarse_prices:
            ranked_by = None
        key = mesh_key, ranked_by
        if key not in self._coarse_prices:
            like = None if ranked_by is None else self.find_coarse(dict(ranked_by[0]), ranked_by[1])
            only = None if like is None else like.priced.strategies()
            self._coarse_prices[key] = self._try_price(mesh_key, only=only)
        return self._coarse_prices[key]

    def find_recipes(self, axes: Mapping[str, int], num_microbatches: int) -> MeshPrices | None:
        """Returns the prices of the known recipes alone, in closed form; None if the step cannot be sharded so."""
        key = tuple(axes.items()), num_microbatches
        if key not in self._recipe_prices:
            self._recipe_prices[key] = self._try_price(key, only_recipes=True)
        return self._recipe_prices[key]

    def refine(self, coarse: MeshPrices, num_microbatches: int) -> MeshPrices | None:
        """Asks the finest pricer for the same strategies; None if a segment has no price."""
        if self._make_pricer is None:
            return coarse
        key = id(coarse)
        if key not in self._fine_prices:
            axes = tuple(coarse.analysis.axes.items())
            priced = coarse.priced.refine(self._make_pricer(_abstract_mesh(axes)), on_progress=self._on_progress)
            reason = priced.find_unpriced()
            if reason:
                self.failures[axes, num_microbatches] = reason
            self._fine_prices[key] = None if reason else replace(coarse, priced=priced)
        return self._fine_prices[key]

    def costs(
        self, axes: Mapping[str, int], num_microbatches: int, *, storage: Storage, recompute: Recompute
    ) -> StepCosts | None:
        """Returns the costs of all segments by the prices of `find`; None if it has none."""
        found = self.find(axes, num_microbatches)
        return None if found is None else self.costs_by(found, storage=storage, recompute=recompute)

    def costs_by(self, prices: MeshPrices, *, storage: Storage, recompute: Recompute) -> StepCosts:
        """Returns the costs of all segments by some prices of this step."""
        key = id(prices), storage, recompute
        if key not in self._costs:
            self._costs[key] = prices.priced.costs(
                storage=storage, recompute=recompute, can_begin_stage=prices.can_begin_stage
            )
        return self._costs[key]

    def _analyse(self, axes: dict[str, int], num_microbatches: int) -> Analysis:
        """Finds the segments; where these are few, each block is one, so that stages can begin there."""
        one = self.problem.trace(num_microbatches)
        if num_microbatches not in self._analysers:
            self._analysers[num_microbatches] = StepAnalyser(one.traced, shards_rows_alone=True)
        tune = partial(tune_products, axes=axes, cluster=self.cluster, batch_axis=None)
        analyse = partial(
            analyse_microbatch, one, axes=axes, analyser=self._analysers[num_microbatches], plan_products=tune
        )
        analysis = analyse()
        num_blocks = len(analysis.blocks)
        is_short = len(analysis.segments) < min(_MIN_SEGMENTS, num_blocks)
        return analyse(lengths=[1] * num_blocks) if is_short else analysis

    def _find_names(self, analysis: Analysis) -> Mapping[int, BlockNames]:
        if analysis.interfaces not in self._names:
            self._names[analysis.interfaces] = names_of_blocks(analysis)
        return self._names[analysis.interfaces]

    def _find_recipes(self, analysis: Analysis) -> dict[str, Assignment]:
        if analysis.interfaces not in self._tensor_choices:
            self._tensor_choices[analysis.interfaces] = tensor_choices(analysis)
        found = baselines(analysis, with_volume=False, tensor=self._tensor_choices[analysis.interfaces])
        return {name: one.assignment for name, one in found.items()}

    def _find_boundaries(self, analysis: Analysis, num_microbatches: int) -> tuple[StageBoundary, ...]:
        # The same with any number of microbatches, where the equations have the same owners.
        key = analysis.owners, analysis.segments
        if key not in self._boundaries:
            self._boundaries[key] = find_stage_boundaries(
                self.problem.trace(num_microbatches), analysis, ignores_marks=self._ignores_marks
            )
        return self._boundaries[key]

    def _try_price(self, key: MeshKey, **options: Any) -> MeshPrices | None:
        axes, num_microbatches = key
        try:
            return self._price(dict(axes), num_microbatches, **options)
        except (ShardingError, PlanError) as error:
            self.failures[key] = str(error)
            return None

    def _price(
        self,
        axes: dict[str, int],
        num_microbatches: int,
        *,
        only: Mapping[tuple[int, ...], Collection[Strategy]] | None = None,
        only_recipes: bool = False,
    ) -> MeshPrices:
        """Prices a mesh: all strategies, those that others have left, or those of known recipes."""
        analysis = self._analyse(axes, num_microbatches)
        names = self._find_names(analysis)
        is_allowed = self._wishes.strategy_filter(names)
        mesh = _abstract_mesh(tuple(axes.items()))
        recipes = self._find_recipes(analysis)
        if self._only_recipes is not None:
            recipes = {name: recipes[name] for name in self._only_recipes}
            is_allowed = partial(_is_one_of, tuple(recipes.values()))
        if mesh.size == 1:
            # All strategies are the same on one device.
            rows = recipes["data parallel"]
            self._wishes.check_strategies(names, {block: [tuple(choice)] for block, choice in rows.items()})
            recipes = {"data parallel": rows}
            is_allowed = partial(_is_same, rows)
        self._coarse = RooflinePricer(self.cluster, mesh, like=self._coarse)
        priced = price_strategies(
            analysis,
            coarse=self._coarse,
            batch_axis=BATCH_AXIS if BATCH_AXIS in axes and mesh.size > 1 else None,
            allowed=is_allowed,
            wishes=", ".join(map(str, self._wishes.strategies)),
            prune=_PRUNE,
            recipes=recipes,
            only=only,
            only_recipes=only_recipes,
            like=self._like.get(analysis.interfaces),
        )
        self._like.setdefault(analysis.interfaces, priced)
        boundaries = self._find_boundaries(analysis, num_microbatches)
        return MeshPrices(
            priced=priced,
            names=names,
            can_begin_stage={found.segment: found.can_begin for found in boundaries},
        )


def _abstract_mesh(axes: MeshAxes) -> AbstractMesh:
    return AbstractMesh(
        tuple(size for _, size in axes), tuple(name for name, _ in axes), axis_types=(AxisType.Auto,) * len(axes)
    )


def _is_same(assignment: Assignment, block: int, choice: tuple[str, ...]) -> bool:
    return tuple(assignment[block]) == choice


def _is_one_of(assignments: Sequence[Assignment], block: int, choice: tuple[str, ...]) -> bool:
    return any(_is_same(assignment, block, choice) for assignment in assignments)
