"""Runs one cell on a backend: the search as `search_sharding` does it, then its plan and others whole."""

import re
import time
from collections.abc import Callable
from dataclasses import replace

from jaxquard.errors import ShardingError
from jaxquard.evaluate.cfp.cells.cell import BlockInfo, Cell, CellSpec, Seconds
from jaxquard.evaluate.cfp.cells.cell_step import cell_axes, make_step
from jaxquard.evaluate.cfp.run.backend import CellBackend, CellSession, OnPart
from jaxquard.evaluate.cfp.run.layer_strategies import layer_strategies
from jaxquard.evaluate.cfp.run.run_plans import run_plans
from jaxquard.evaluate.cfp.run.sum_price import equation_7
from jaxquard.intraop.blocks.contraction import Contraction
from jaxquard.intraop.plan.predict import predict_all
from jaxquard.intraop.plan.search_plans import PlanSearch, search_plans
from jaxquard.intraop.plan.segment_prices import StepPrices, price_segments
from jaxquard.intraop.segments.analysis import Analysis, analyse_step
from jaxquard.intraop.shardings.baselines import CandidatePlan, baselines
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.ir.jaxpr_tools import Var, is_var
from jaxquard.ir.source import source_line
from jaxquard.pricing import Pricer, Progress


def thin_choices(analysis: Analysis) -> Analysis:
    """The same analysis with the choices of data parallelism and of Megatron alone."""
    known = baselines(analysis)
    kept = [
        {*known["data parallel"].assignment[block.number], *known["megatron"].assignment[block.number]}
        for block in analysis.blocks
    ]
    blocks = [
        replace(block, choices=tuple(choice for choice in block.choices if choice.name in names))
        for block, names in zip(analysis.blocks, kept, strict=True)
    ]
    return replace(analysis, blocks=tuple(blocks))


_KEY = re.compile(r"\['([^']+)'\]|\[(\d+)\]")
# Words that say nothing beside others.
_COMMON = {"params", "layers", "kernel", "weight"}


def name_blocks(analysis: Analysis) -> tuple[BlockInfo, ...]:
    """All blocks of a step, in order."""
    names = dict(zip(analysis.graph.step.jaxpr.invars, analysis.graph.step.input_names, strict=True))
    of_block, kinds = analysis.segment_of_block(), [segment.kind for segment in analysis.segments]
    return tuple(
        BlockInfo(
            segment=of_block[block.number],
            kind=kinds[of_block[block.number]],
            weight=" ".join(dict.fromkeys(_weight(analysis, seed, names) for seed in block.seeds)),
            line=source_line(block.seeds[0].equation),
            names=block.names,
        )
        for block in analysis.blocks
    )


def _weight(analysis: Analysis, seed: Contraction, names: dict[Var, str]) -> str:
    """The end of the state's name that goes into a product; else the product's own name."""
    for var in seed.equation.invars[::-1]:
        while is_var(var) and var not in names and var in analysis.graph.definitions:
            inputs = analysis.graph.equations[analysis.graph.definitions[var]].invars
            if len(inputs) != 1:
                break
            (var,) = inputs
        if is_var(var) and var in analysis.graph.state:
            words = [one or other for one, other in _KEY.findall(names[var])]
            distinctive = [word for word in words if word not in _COMMON and not word.isdecimal()]
            return " ".join(distinctive[-2:]) or names[var]
    return seed.equation.primitive.name


def run_cell(spec: CellSpec, *, backend: CellBackend, on_part: OnPart = lambda *_: None) -> Cell:
    """Runs a cell.

    Args:
        backend: measures on this machine, or prices for a cluster.
        on_part: called with how far each part of the work is.
    """
    axes = cell_axes(spec)
    clock = _Clock()
    on_part("analysing", 0, 1, "")
    step, args = make_step(spec)
    clock.start()
    traced = trace_step(step, args)
    traced_s = clock.lap()
    analysis = analyse_step(traced, axes=axes)
    if spec.is_thin:
        analysis = thin_choices(analysis)
    seconds = Seconds(traced=traced_s, analysed=clock.lap())
    outer = next(iter(axes)) if len(axes) > 1 else None
    known = _Known(on_part)
    with backend.open(spec) as session:
        pricer = session.pricer
        prices = price_segments(
            StepPrograms(analysis), pricer=pricer, batch_axis=outer, on_progress=known.part("pricing segments")
        )
        seconds = _with_pricing(seconds, session, priced_s=clock.lap())
        num_known = known.num_cached
        limit_bytes = _limit_bytes(spec, prices, session)
        found = _search(spec, prices, pricer, limit_bytes, known)
        composed_s = found.composed_s if isinstance(found, PlanSearch) else 0.0
        seconds = replace(seconds, composed=composed_s, predicted=clock.lap() - composed_s)
        plans = _plans(analysis, prices, found, spec.num_strategies, limit_bytes)
        on_part("writing whole steps", 0, len(plans), "")
        written = prices.programs
        programs = {plan.name: write_whole_step(written, plan.assignment, storage=plan.storage) for plan in plans}
        whole = session.whole_runs()
        whole.compile(programs, on_part=on_part)
        seconds = replace(seconds, whole_compiled=clock.lap())
        chosen = None if isinstance(found, ShardingError) else found.plans[found.chosen].name
        runs = run_plans(analysis, prices, found, plans, whole=whole, limit_bytes=limit_bytes, on_part=on_part)
    return Cell(
        spec=spec,
        limit_bytes=limit_bytes,
        runs=tuple(runs),
        chosen=chosen,
        num_programs=prices.num_programs,
        equation_7=equation_7(analysis, batch_axis=outer),
        num_known=num_known,
        blocks=name_blocks(analysis),
        seconds=replace(seconds, whole_run=clock.lap()),
        machine=backend.machine(spec),
        failure=str(found) if isinstance(found, ShardingError) else None,
        cluster=backend.cluster_name,
    )


def _with_pricing(seconds: Seconds, session: CellSession, *, priced_s: float) -> Seconds:
    """Adds what the prices of segments took."""
    work = session.pricing_work()
    return replace(seconds, priced=priced_s, lowered=work.lowered_s, compiled=work.compiled_s, profiled=work.run_s)


def _limit_bytes(spec: CellSpec, prices: StepPrices, session: CellSession) -> int | None:
    """Returns the limit in bytes: the cell's own, and at most the memory of a device where that is the limit."""
    limits = [limit for limit in (spec.memory_limit_bytes, session.capacity_bytes) if limit is not None]
    if spec.memory_limit_share is not None:
        (whole,) = predict_all(prices, [baselines(prices.analysis)["data parallel"]], pricer=session.pricer)
        limits.append(int(spec.memory_limit_share * whole.size_bytes))
    return min(limits, default=None)


def _search(
    spec: CellSpec,
    prices: StepPrices,
    pricer: Pricer,
    limit_bytes: int | None,
    known: "_Known",
) -> PlanSearch | ShardingError:
    try:
        return search_plans(
            prices,
            pricer=pricer,
            memory_limit_bytes=limit_bytes,
            num_finalists=spec.num_finalists,
            on_progress=known.part("pricing finalists"),
        )
    except ShardingError as error:
        return error


def _plans(
    analysis: Analysis,
    prices: StepPrices,
    found: PlanSearch | ShardingError,
    num_strategies: int | None,
    limit_bytes: int | None,
) -> list[CandidatePlan]:
    """The chosen plan and the baselines; with strategies, all finalists as well."""
    if isinstance(found, ShardingError):
        return list(baselines(analysis).values())
    chosen = found.plans[found.chosen]
    if num_strategies == 0:
        return [*([] if chosen in found.baselines else [chosen]), *found.baselines]
    fastest = sorted(range(len(found.finalists)), key=lambda place: found.predictions[place].time_s)
    bases = [chosen.assignment, *(found.finalists[place].assignment for place in fastest)]
    others = layer_strategies(analysis, prices, bases=bases, count=num_strategies, limit_bytes=limit_bytes)
    return [*found.plans, *others]


class _Clock:
    """Measures laps of wall-clock time."""

    def start(self) -> None:
        self._last_s = time.perf_counter()

    def lap(self) -> float:
        before_s, self._last_s = self._last_s, time.perf_counter()
        return self._last_s - before_s


class _Known:
    """Hands on progress, and counts the prices that were known."""

    def __init__(self, on_part: OnPart) -> None:
        self._on_part = on_part
        self.num_cached = 0

    def part(self, label: str) -> Callable[[Progress], None]:
        def on_progress(progress: Progress) -> None:
            self.num_cached = progress.num_cached
            left = "" if progress.left_s is None else f"{progress.left_s:.0f} s left; "
            self._on_part(label, progress.done, progress.total, left + progress.name)

        return on_progress
