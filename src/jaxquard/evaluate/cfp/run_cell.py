"""Runs one cell: the search as `search_sharding` does it, then its plan and others whole."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from jaxquard.errors import ShardingError
from jaxquard.evaluate.cfp.cell import Cell, Seconds
from jaxquard.evaluate.cfp.cell_spec import CellSpec
from jaxquard.evaluate.cfp.cell_step import axes_of, make_step
from jaxquard.evaluate.cfp.describe_machine import describe_machine
from jaxquard.evaluate.cfp.layer_strategies import layer_strategies
from jaxquard.evaluate.cfp.name_blocks import name_blocks
from jaxquard.evaluate.cfp.run_plans import OnPart, run_plans
from jaxquard.evaluate.cfp.sum_price import equation_7
from jaxquard.evaluate.cfp.thin_choices import thin_choices
from jaxquard.evaluate.cfp.whole_steps import WholeSteps
from jaxquard.intraop.plan.predict import predict_all
from jaxquard.intraop.plan.search_plans import PlanSearch, search_plans
from jaxquard.intraop.plan.segment_prices import StepPrices, price_segments
from jaxquard.intraop.plan.sharding_plan import make_mesh
from jaxquard.intraop.segments.analysis import Analysis, analyse_step
from jaxquard.intraop.shardings.baselines import CandidatePlan, baselines
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.pricing import MeasuredPricer, PriceCache, Progress


def run_cell(spec: CellSpec, *, cache: PriceCache | None, on_part: OnPart = lambda *_: None) -> Cell:
    """Runs a cell.

    Args:
        cache: where prices of parts are kept; whole steps are always run.
        on_part: told how far each part of the work is.
    """
    axes = axes_of(spec)
    mesh = make_mesh(axes)
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
    with MeasuredPricer(mesh, cache=cache) as pricer:
        prices = price_segments(
            StepPrograms(analysis), pricer=pricer, batch_axis=outer, on_progress=known.part("pricing segments")
        )
        spent = pricer.spent
        seconds = replace(
            seconds,
            priced=clock.lap(),
            lowered=spent.lowering_s,
            compiled=spent.compile_work_s,
            profiled=spent.running_s,
        )
        num_known = known.num_cached
        limit_bytes = _limit_bytes(spec, prices, pricer)
        found = _search(spec, prices, pricer, limit_bytes, known)
        composed_s = found.composed_s if isinstance(found, PlanSearch) else 0.0
        seconds = replace(seconds, composed=composed_s, predicted=clock.lap() - composed_s)
        plans = _plans(analysis, prices, found, spec.num_strategies, limit_bytes)
        steps = WholeSteps(mesh, compilers=pricer.compilers)
        on_part("writing whole steps", 0, len(plans), "")
        written = prices.programs
        programs = {plan.name: write_whole_step(written, plan.assignment, storage=plan.storage) for plan in plans}
        steps.compile(programs, on_step=partial(on_part, "compiling whole steps"))
        seconds = replace(seconds, whole_compiled=clock.lap())
        chosen = None if isinstance(found, ShardingError) else found.plans[found.chosen].name
        runs = run_plans(analysis, prices, found, plans, steps=steps, limit_bytes=limit_bytes, on_part=on_part)
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
        machine=describe_machine(mesh),
        failure=str(found) if isinstance(found, ShardingError) else None,
    )


def _limit_bytes(spec: CellSpec, prices: StepPrices, pricer: MeasuredPricer) -> int | None:
    """The limit in bytes."""
    if spec.memory_limit_share is None:
        return spec.memory_limit_bytes
    (whole,) = predict_all(prices, [baselines(prices.analysis)["data parallel"]], pricer=pricer)
    return int(spec.memory_limit_share * whole.size_bytes)


def _search(
    spec: CellSpec,
    prices: StepPrices,
    pricer: MeasuredPricer,
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
    """Laps."""

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
