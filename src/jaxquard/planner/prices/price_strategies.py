"""From the analysis of a step and a pricer to its prices on a mesh.

write      every strategy of every kind of segment, but for those that are forbidden at all segments of the kind
rank       them by the roofline of their programs
prune      for a pricer that compiles or measures, all but the promising ones
price      what is left, and the reshards between segments
"""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence

from jaxquard.errors import PlanError
from jaxquard.intraop.blocks.parameter_paths import equation_place
from jaxquard.intraop.plan.segment_prices import WrittenStrategies, price_segments
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.segments.strategies import Strategy, segment_strategies
from jaxquard.intraop.shardings.baselines import baselines
from jaxquard.intraop.shardings.layouts import Assignment
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.planner.prices.prune import PruneSettings, prune_strategies
from jaxquard.planner.prices.step_costs import Allowed, PricedStrategies, without_single_axes
from jaxquard.planner.prices.strategy_cost import StrategyCost, StrategyCosts
from jaxquard.pricing import Failure, OnProgress, Price, Pricer, ShardedProgram
from jaxquard.pricing.batch_pricer import BatchPricer
from jaxquard.pricing.roofline.roofline_pricer import RooflinePricer


def price_strategies(
    analysis: Analysis,
    *,
    coarse: RooflinePricer,
    pricer: Pricer | None = None,
    batch_axis: str | None = None,
    allowed: Allowed = lambda block, names: True,
    wishes: str = "",
    prune: PruneSettings | None = None,
    recipes: Mapping[str, Assignment] | None = None,
    only: Mapping[tuple[int, ...], Collection[Strategy]] | None = None,
    only_recipes: bool = False,
    like: PricedStrategies | None = None,
    on_progress: OnProgress | None = None,
) -> PricedStrategies:
    """Prices the strategies of a step's segments on the mesh of a pricer.

    Args:
        analysis: of a step on one microbatch, for the axes of that mesh.
        coarse: ranks and splits, and prices where there is no other pricer.
        pricer: another one, such as a `CompilePricer` or a `MeasuredPricer`.
        batch_axis: this axis always shards rows, where a block has any that it divides.
        allowed: returns whether a block may have a choice on every axis.
        wishes: of the user, as text for the error if they leave a block nothing.
        prune: limits of what is priced beyond its rank; by default `PruneSettings()` for `pricer`, and none without it.
        recipes: known assignments, whose strategies stay; by default the baselines but for `volume`.
        only: the strategies to consider, by the blocks of a segment; all of those for which it has none.
        only_recipes: considers those of the recipes alone, where a segment may have one of these.
        like: the prices on another mesh; where both have the same segments, their programs are read once.
        on_progress: called as prices become known.

    Raises:
        PlanError: if nothing is allowed for a block.
        ShardingError: if a block cannot be sharded over all axes.
    """
    programs = StepPrograms(analysis, like=None if like is None else like.prices.programs)
    costs = StrategyCosts(programs, coarse, like=None if like is None else like.strategy_costs)
    if recipes is None:
        recipes = {name: found.assignment for name, found in baselines(analysis).items()}
    if only_recipes:
        only = {segment.blocks: _recipe_strategies([segment], recipes) for segment in analysis.segments}
    written = _write(programs, batch_axis, allowed, wishes, recipes, only or {})
    first = {segment.kind: segment for segment in reversed(analysis.segments)}
    known = {
        (kind, strategy): costs.cost(first[kind], strategy, program)
        for kind, of_kind in written.items()
        for strategy, program in of_kind.items()
    }
    if pricer is not None or prune is not None:
        written = _prune(analysis, written, known, recipes, prune or PruneSettings())
    if pricer is None:
        ranked = {
            id(program): known[kind, strategy]
            for kind, of_kind in written.items()
            for strategy, program in of_kind.items()
        }
        asked: Pricer = _RankedPricer(coarse, ranked)
    else:
        asked = pricer
    return PricedStrategies(
        price_segments(programs, pricer=asked, written=written, on_progress=on_progress),
        written=written,
        costs=costs,
        coarse=known,
        is_coarse=pricer is None,
        allowed=allowed,
        recipes=recipes,
    )


class _RankedPricer(BatchPricer):
    """Gives programs the prices that they were ranked by, and prices reshards."""

    def __init__(self, coarse: RooflinePricer, ranked: Mapping[int, StrategyCost]) -> None:
        self._coarse = coarse
        self._ranked = ranked

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        known = [self._ranked.get(id(program)) for program in programs]
        return [
            self._coarse.price(program) if found is None else self._coarse.to_price(found.cost)
            for program, found in zip(programs, known, strict=True)
        ]


def _write(
    programs: StepPrograms,
    batch_axis: str | None,
    allowed: Allowed,
    wishes: str,
    recipes: Mapping[str, Assignment],
    only: Mapping[tuple[int, ...], Collection[Strategy]],
) -> WrittenStrategies:
    """Writes the strategies that some segment of each kind may have; of those that are the same here, one."""
    analysis = programs.analysis
    kinds: dict[int, list[Segment]] = {}
    for segment in analysis.segments:
        kinds.setdefault(segment.kind, []).append(segment)
    written: WrittenStrategies = {}
    for kind, segments in kinds.items():
        first = segments[0]
        strategies = segment_strategies(
            first,
            graph=analysis.graph,
            blocks=analysis.blocks,
            axes=analysis.axes,
            batch_axis=batch_axis,
            products=analysis.products,
        )
        extra = _recipe_strategies(segments, recipes)
        if batch_axis is not None:
            extra = _on_batch_axis(extra, strategies, list(analysis.axes).index(batch_axis))
        strategies = list(dict.fromkeys([*strategies, *extra]))
        wanted: dict[Strategy, None] = {}
        for segment in segments:
            fitting: dict[Strategy, Strategy] = {}
            for strategy in strategies:
                if _is_allowed(segment, strategy, allowed):
                    fitting.setdefault(without_single_axes(strategy, analysis.axes), strategy)
            if not fitting:
                raise PlanError(_nothing_allowed(analysis, segment, strategies, allowed, wishes))
            considered = only.get(segment.blocks, ())
            wanted.update(dict.fromkeys([one for one in fitting.values() if one in considered] or fitting.values()))
        written[kind] = {
            strategy: programs.write_segments([first], dict(zip(first.blocks, strategy, strict=True)))
            for strategy in strategies
            if strategy in wanted
        }
    return written


def _recipe_strategies(segments: Sequence[Segment], recipes: Mapping[str, Assignment]) -> list[Strategy]:
    return [
        tuple(tuple(assignment[block]) for block in segment.blocks)
        for assignment in recipes.values()
        for segment in segments
    ]


def _on_batch_axis(extra: Sequence[Strategy], strategies: Sequence[Strategy], axis: int) -> list[Strategy]:
    """Returns the strategies whose blocks have choices on an axis that others have there too."""
    known = [{strategy[place][axis] for strategy in strategies} for place in range(len(strategies[0]))]
    return [
        strategy
        for strategy in extra
        if all(names[axis] in fitting for names, fitting in zip(strategy, known, strict=True))
    ]


def _is_allowed(segment: Segment, strategy: Strategy, allowed: Allowed) -> bool:
    return all(allowed(block, names) for block, names in zip(segment.blocks, strategy, strict=True))


def _nothing_allowed(
    analysis: Analysis, segment: Segment, strategies: Sequence[Strategy], allowed: Allowed, wishes: str
) -> str:
    axes = " x ".join(f"{name} {size}" for name, size in analysis.axes.items())
    for place, number in enumerate(segment.blocks):
        names = dict.fromkeys(strategy[place] for strategy in strategies)
        if not any(allowed(number, found) for found in names):
            where = equation_place(analysis.graph, analysis.blocks[number].seeds[0].equation)
            choices = ", ".join("/".join(found) for found in names)
            return (
                f"{wishes or 'the wishes'} leave nothing for the product at {where}, which on a mesh of {axes} can be "
                f"sharded by {choices}. Allow one of these, or another mesh."
            )
    raise AssertionError("strategies are all combinations of what blocks may have")


def _prune(
    analysis: Analysis,
    written: WrittenStrategies,
    known: Mapping[tuple[int, Strategy], StrategyCost],
    recipes: Mapping[str, Assignment],
    settings: PruneSettings,
) -> WrittenStrategies:
    """Leaves the strategies that are priced finely; each segment keeps one that it is allowed."""
    kept: WrittenStrategies = {}
    for kind, of_kind in written.items():
        segments = [segment for segment in analysis.segments if segment.kind == kind]
        coarse = {strategy: (known[kind, strategy].time_s, known[kind, strategy].size_bytes) for strategy in of_kind}
        chosen = prune_strategies(coarse, recipes=_recipe_strategies(segments, recipes), settings=settings)
        kept[kind] = {strategy: of_kind[strategy] for strategy in chosen}
    return kept
