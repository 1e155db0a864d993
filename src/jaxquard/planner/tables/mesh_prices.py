"""The prices of a step on one mesh, with so many microbatches: facts as plain data, and costs on request.

A search and the description of a plan read these alone. They do not see the analysis behind them, which need not be
there: costs that are known need none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.block_names import BlockNames
from jaxquard.intraop.segments.strategies import Strategy
from jaxquard.intraop.segments.tune_products import ProductPlans
from jaxquard.intraop.shardings.layouts import Assignment, Storage
from jaxquard.planner.prices.step_costs import PricedStrategies, StepCosts
from jaxquard.planner.record.plan import Recompute

# The axes of a mesh and their sizes.
MeshAxes = tuple[tuple[str, int], ...]
# A mesh, and a number of microbatches.
MeshKey = tuple[MeshAxes, int]
CostsKey = tuple[Storage, Recompute]


@dataclass(frozen=True, slots=True, kw_only=True)
class PricesKey:
    """The identity of prices among all that a step has.

    Attributes:
        ranked_by: another mesh, or number of microbatches; the strategies that are left out with it are not ranked.
        only_recipes: the strategies are those of known recipes.
        pricer: the key of the finest pricer; "" for the closed form.
    """

    axes: MeshAxes
    num_microbatches: int
    ranked_by: MeshKey | None = None
    only_recipes: bool = False
    pricer: str = ""

    @property
    def mesh_key(self) -> MeshKey:
        """The mesh, and the number of microbatches."""
        return self.axes, self.num_microbatches


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshFacts:
    """A step on a mesh, but for its costs.

    Attributes:
        blocks: of each segment.
        strategies: that were priced, by the blocks of each segment.
        names: of the blocks, as the user knows them.
        can_begin_stage: for each segment, by its number.
        recipes: known assignments by name.
        products: for each block that may be a 2D product, the plan of each of its first contractions.
        row_chunks: for each block whose rows can be sharded, the number of their chunks.
        provenance: of the prices, such as "measured on 8 x cpu".
        num_programs: that were priced.
    """

    blocks: tuple[tuple[int, ...], ...]
    strategies: Mapping[tuple[int, ...], tuple[Strategy, ...]] = field(repr=False)
    names: Mapping[int, BlockNames] = field(repr=False)
    can_begin_stage: Mapping[int, bool]
    recipes: Mapping[str, Assignment] = field(repr=False)
    products: ProductPlans = field(repr=False)
    row_chunks: Mapping[int, int] = field(repr=False)
    provenance: str
    num_programs: int


class MeshPrices:
    """The prices of a step on one mesh, with so many microbatches.

    Args:
        price: prices the strategies; called once, for costs that are not known.
        known: costs by storage and recomputation.
    """

    def __init__(
        self,
        key: PricesKey,
        facts: MeshFacts,
        *,
        price: Callable[[], PricedStrategies],
        known: Mapping[CostsKey, StepCosts] | None = None,
    ) -> None:
        self.key = key
        self.facts = facts
        self._price = price
        self._priced: PricedStrategies | None = None
        self._costs: dict[CostsKey, StepCosts] = dict(known or {})
        self._has_rows: dict[tuple[float, tuple[int, ...], Strategy], bool] = {}

    @property
    def axes(self) -> dict[str, int]:
        """The mesh axes and their sizes."""
        return dict(self.key.axes)

    def priced(self) -> PricedStrategies:
        """Returns the strategies with their prices; priced now, if they are not yet."""
        if self._priced is None:
            self._priced = self._price()
        return self._priced

    @property
    def known(self) -> Mapping[CostsKey, StepCosts]:
        """The costs that are known by now."""
        return self._costs

    def costs(self, *, storage: Storage, recompute: Recompute) -> StepCosts:
        """Returns the costs of all segments for a storage of state and a kind of recomputation."""
        key = storage, recompute
        if key not in self._costs:
            self._costs[key] = self.priced().costs(
                storage=storage, recompute=recompute, can_begin_stage=self.facts.can_begin_stage
            )
        return self._costs[key]

    def has_rows(self, scale: float, blocks: Sequence[int], strategy: Strategy) -> bool:
        """Returns true if the rows of microbatches that are larger by a factor can be sharded by a strategy."""
        key = scale, tuple(blocks), strategy
        if key not in self._has_rows:
            pairs = zip(blocks, strategy, strict=True)
            self._has_rows[key] = all(self._divides_rows(scale, block, names) for block, names in pairs)
        return self._has_rows[key]

    def _divides_rows(self, scale: float, block: int, choice: Sequence[str]) -> bool:
        names = zip(choice, self.key.axes, strict=True)
        num_shards = math.prod(size for name, (_, size) in names if name == "rows")
        return num_shards == 1 or not self.facts.row_chunks[block] * scale % num_shards


def read_facts(
    priced: PricedStrategies, *, names: Mapping[int, BlockNames], can_begin_stage: Mapping[int, bool]
) -> MeshFacts:
    """Returns the facts of a step whose strategies are priced."""
    analysis = priced.analysis
    return MeshFacts(
        blocks=tuple(segment.blocks for segment in analysis.segments),
        strategies=priced.strategies(),
        names=names,
        can_begin_stage=can_begin_stage,
        recipes=priced.recipes,
        products=analysis.products,
        row_chunks=_row_chunks(analysis),
        provenance=priced.provenance,
        num_programs=priced.prices.num_programs,
    )


def _row_chunks(analysis: Analysis) -> dict[int, int]:
    rows = {
        block.number: [choice.num_chunks for choice in block.all_choices if choice.name == "rows"]
        for block in analysis.blocks
    }
    return {number: found[0] for number, found in rows.items() if found}
