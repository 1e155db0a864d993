"""Prices a step for a mesh of an actor and a number of microbatches, from its analysis."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from jax.sharding import AbstractMesh, AxisType

from jaxquard.cluster import Cluster
from jaxquard.intraop.segments.analysis import Analysis, StepAnalyser
from jaxquard.intraop.segments.block_names import BlockNames, names_of_blocks
from jaxquard.intraop.segments.interfaces import SegmentInterfaces
from jaxquard.intraop.segments.strategies import Strategy
from jaxquard.intraop.segments.tune_products import tune_products
from jaxquard.intraop.shardings.baselines import baselines, tensor_choices
from jaxquard.intraop.shardings.layouts import Assignment
from jaxquard.planner.prices.price_strategies import price_strategies
from jaxquard.planner.prices.prune import PruneSettings
from jaxquard.planner.prices.step_costs import PricedStrategies
from jaxquard.planner.prices.step_flops import step_flops
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.step.stage_boundaries import StageBoundary, analyse_microbatch, find_stage_boundaries
from jaxquard.planner.tables.mesh_prices import MeshAxes, MeshPrices, PricesKey, read_facts
from jaxquard.planner.wishes import Wishes
from jaxquard.pricing.roofline.roofline_pricer import RooflinePricer

BATCH_AXIS = "data"
# The strategies to consider, by the blocks of a segment.
StrategiesByBlocks = Mapping[tuple[int, ...], Collection[Strategy]]
_MIN_SEGMENTS = 4
# Storages are priced, and stages assigned, with the strategies that this leaves.
_PRUNE = PruneSettings(slow_factor=2.0, max_strategies=12)


class LivePricing:
    """Prices a step in closed form; it analyses the step once for each mesh and number of microbatches.

    Args:
        ignores_marks: stages may begin at any segment, also where the step has marks of its own.
        recipes: names of known assignments; blocks then have the choices of these alone. None for all choices.
    """

    def __init__(
        self,
        problem: PlanProblem,
        cluster: Cluster,
        *,
        wishes: Wishes,
        ignores_marks: bool = False,
        recipes: Collection[str] | None = None,
    ) -> None:
        self.problem, self.cluster, self.wishes = problem, cluster, wishes
        self.ignores_marks, self.recipes = ignores_marks, recipes
        self._coarse: RooflinePricer | None = None
        self._analysers: dict[int, StepAnalyser] = {}
        # Meshes with the same segments share what is read from the step.
        self._like: dict[SegmentInterfaces, PricedStrategies] = {}
        self._names: dict[SegmentInterfaces, Mapping[int, BlockNames]] = {}
        self._tensor_choices: dict[SegmentInterfaces, Mapping[int, str]] = {}
        self._boundaries: dict[object, tuple[StageBoundary, ...]] = {}

    def share_with(self, other: "LivePricing") -> None:
        """Shares the analyses of the same step that another one has begun."""
        self._analysers = other._analysers

    @property
    def flops(self) -> float:
        """The FLOPs of a step, without recomputation."""
        count = self.problem.counts[0]
        return count * step_flops(self._analyse({BATCH_AXIS: 1}, count).graph)

    def find_boundaries(self) -> tuple[StageBoundary, ...]:
        """Finds the places where stages may begin.

        Raises:
            PlanError: if a wish for a strategy names nothing, or contradicts another.
        """
        count = self.problem.counts[0]
        analysis = self._analyse({BATCH_AXIS: 1}, count)
        self.wishes.strategy_filter(self._find_names(analysis))
        return self._find_boundaries(analysis, count)

    def price(self, key: PricesKey, *, only: StrategiesByBlocks | None = None) -> MeshPrices:
        """Prices a mesh in closed form.

        Args:
            only: the strategies to consider.

        Raises:
            PlanError: if nothing is allowed for a block.
            ShardingError: if the step cannot be sharded over the mesh.
        """
        priced = self.price_strategies(key, only=only)
        boundaries = self._find_boundaries(priced.analysis, key.num_microbatches)
        facts = read_facts(
            priced,
            names=self._find_names(priced.analysis),
            can_begin_stage={found.segment: found.can_begin for found in boundaries},
        )
        return MeshPrices(key, facts, price=lambda: priced)

    def price_strategies(self, key: PricesKey, *, only: StrategiesByBlocks | None = None) -> PricedStrategies:
        """Prices the strategies of a mesh in closed form: all, those that others have left, or those of recipes."""
        axes = dict(key.axes)
        analysis = self._analyse(axes, key.num_microbatches)
        names = self._find_names(analysis)
        is_allowed = self.wishes.strategy_filter(names)
        mesh = abstract_mesh_of(key.axes)
        recipes = self._find_recipes(analysis)
        if self.recipes is not None:
            recipes = {name: recipes[name] for name in self.recipes}
            is_allowed = partial(_is_one_of, tuple(recipes.values()))
        if mesh.size == 1:
            # All strategies are the same on one device.
            rows = recipes["data parallel"]
            self.wishes.check_strategies(names, {block: [tuple(choice)] for block, choice in rows.items()})
            recipes = {"data parallel": rows}
            is_allowed = partial(_is_same, rows)
        self._coarse = RooflinePricer(self.cluster, mesh, like=self._coarse)
        priced = price_strategies(
            analysis,
            coarse=self._coarse,
            batch_axis=BATCH_AXIS if BATCH_AXIS in axes and mesh.size > 1 else None,
            allowed=is_allowed,
            wishes=", ".join(map(str, self.wishes.strategies)),
            prune=_PRUNE,
            recipes=recipes,
            only=only,
            only_recipes=key.only_recipes,
            like=self._like.get(analysis.interfaces),
        )
        self._like.setdefault(analysis.interfaces, priced)
        return priced

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
        found = baselines(analysis, tensor=self._tensor_choices[analysis.interfaces])
        return {name: one.assignment for name, one in found.items()}

    def _find_boundaries(self, analysis: Analysis, num_microbatches: int) -> tuple[StageBoundary, ...]:
        # The same with any number of microbatches, where the equations have the same owners.
        key = analysis.owners, analysis.segments
        if key not in self._boundaries:
            self._boundaries[key] = find_stage_boundaries(
                self.problem.trace(num_microbatches), analysis, ignores_marks=self.ignores_marks
            )
        return self._boundaries[key]


def abstract_mesh_of(axes: MeshAxes) -> AbstractMesh:
    """Returns the mesh of these axes, without devices."""
    return AbstractMesh(
        tuple(size for _, size in axes), tuple(name for name, _ in axes), axis_types=(AxisType.Auto,) * len(axes)
    )


def _is_same(assignment: Assignment, block: int, choice: tuple[str, ...]) -> bool:
    return tuple(assignment[block]) == choice


def _is_one_of(assignments: Sequence[Assignment], block: int, choice: tuple[str, ...]) -> bool:
    return any(_is_same(assignment, block, choice) for assignment in assignments)
