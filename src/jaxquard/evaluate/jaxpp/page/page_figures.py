"""The drawings of the page."""

from collections.abc import Callable, Sequence

from jaxquard.evaluate.common.headlines import in_unit
from jaxquard.evaluate.jaxpp.figures.breakdown import OverheadBreakdown
from jaxquard.evaluate.jaxpp.figures.table_1 import TableStep
from jaxquard.evaluate.jaxpp.figures.tradeoffs import MICROBATCHES, TradeoffPoint
from jaxquard.evaluate.jaxpp.figures.weak_scaling import GPU_COUNTS, SYSTEMS, WeakScalingPoint
from jaxquard.evaluate.jaxpp.headlines import OpenHeadline
from jaxquard.report.charts.bar_chart import Bar, Series, bar_chart
from jaxquard.report.charts.range_chart import Range, range_chart
from jaxquard.report.charts.stacked_chart import stacked_chart
from jaxquard.report.charts.xy_chart import Dot, DotSeries, xy_chart

_COLORS = {"JaxPP": "#3b6fb0", "JAX FSDP": "#ddb84a", "JAX SPMD PP": "#c45a6c", "NeMo": "#2f9e8c"}
_SIZE_COLORS = dict(zip(MICROBATCHES, ("#ddb84a", "#2f9e8c", "#3b6fb0"), strict=True))
_GRADE_COLORS = {"good": "#a7dbbd", "fair": "#f3d98b", "poor": "#f0b3ad"}


def draw_open_headlines(headlines: Sequence[OpenHeadline]) -> str:
    """All headlines with their bands."""

    def shown_in(unit: str) -> Callable[[float], str]:
        return lambda value: in_unit(value, unit)

    ranges = [
        Range(
            name=headline.paper.title,
            paper=headline.paper.value,
            ours=headline.ours,
            band=headline.band,
            color=_GRADE_COLORS[headline.verdict.grade.value],
            show=shown_in(headline.paper.unit),
        )
        for headline in headlines
    ]
    return range_chart("Headlines", ranges, legend=("our band", "ours", "paper"))


def _whole(value: float) -> str:
    return f"{value:.0f}"


def draw_tradeoffs(
    title: str, points: Sequence[TradeoffPoint], x_name: str, x_of: Callable[[TradeoffPoint], float]
) -> str:
    """TFLOPS over one number, a line for each microbatch size."""
    series = [
        DotSeries(
            name=f"microbatches of {size}",
            color=_SIZE_COLORS[size],
            dots=tuple(
                Dot(x=x_of(point), y=point.ours.tflops, hint=_hint(point))
                for point in points
                if point.microbatch == size
            ),
            is_line=True,
        )
        for size in MICROBATCHES
    ]
    return xy_chart(title, series, x_name=x_name, y_name="TFLOPS a GPU")


def draw_bubbles(
    title: str, points: Sequence[TradeoffPoint], x_name: str, x_of: Callable[[TradeoffPoint], float]
) -> str:
    """The same with the bubble, in percent."""
    series = [
        DotSeries(
            name=f"microbatches of {size}",
            color=_SIZE_COLORS[size],
            dots=tuple(
                Dot(x=x_of(point), y=100 * point.ours.bubble, hint=_hint(point))
                for point in points
                if point.microbatch == size
            ),
            is_line=True,
        )
        for size in MICROBATCHES
    ]
    return xy_chart(title, series, x_name=x_name, y_name="bubble, %")


def _hint(point: TradeoffPoint) -> str:
    ours = point.ours
    text = (
        f"{point.repeat} repeats, {point.num_microbatches} microbatches of {point.microbatch}: {ours.tflops:.0f} TFLOPS"
    )
    text += f", bubble {100 * ours.bubble:.1f} %, {ours.peak_bytes / 1e9:.0f} GB"
    return text + (f", {ours.recompute_share:.0%} of layers recomputed" if ours.recompute_share else "")


def draw_weak_scaling(points: Sequence[WeakScalingPoint]) -> str:
    """Figure 9."""
    series = [
        Series(
            name=system,
            color=_COLORS[system],
            bars=tuple(
                Bar(value=point.ours.tflops, paper=point.paper_tflops, hint=f"{point.ours.step_time_s:.2f} s")
                for point in points
                if point.system == system
            ),
        )
        for system in SYSTEMS
    ]
    return bar_chart(
        "GPT-3 175B, 2 sequences a GPU",
        [f"{count} GPUs" for count in GPU_COUNTS],
        series,
        value_name="TFLOPS a GPU",
        show=_whole,
        show_tick=_whole,
        most=600,
        mark="the paper's (Table 1)",
    )


def draw_systems(rows: Sequence[TableStep]) -> str:
    """Figure 10: one bar a system, at the smallest number of GPUs that Table 1 has."""
    models = (("GPT3-175B", 128), ("Llama2-70B", 64))
    series = []
    for system, color in _COLORS.items():
        bars: list[Bar | None] = []
        for model, gpus in models:
            found = [
                row for row in rows if (row.paper.system, row.paper.model, row.paper.num_gpus) == (system, model, gpus)
            ]
            bars.append(
                Bar(value=found[0].ours.tflops, paper=found[0].paper.tflops, hint=f"{found[0].ours.step_time_s:.2f} s")
                if found
                else None
            )
        series.append(Series(name=system, color=color, bars=tuple(bars)))
    return bar_chart(
        "Throughput",
        [f"{model}, {gpus} GPUs" for model, gpus in models],
        series,
        value_name="TFLOPS a GPU",
        show=_whole,
        show_tick=_whole,
        most=620,
        mark="the paper's (Table 1)",
    )


def draw_breakdown(parts: OverheadBreakdown) -> str:
    """Figure 11."""
    names = (
        ("JaxPP's step", "#3b6fb0"),
        ("synchronous sends", "#ddb84a"),
        ("rematerialisation", "#c45a6c"),
        ("schedule, microbatches, tensor parallelism", "#8a9099"),
    )
    bars = [
        ("JaxPP", (parts.jaxpp_s, 0.0, 0.0, 0.0)),
        ("JAX SPMD PP", (parts.jaxpp_s, parts.sends_s, parts.recompute_s, max(parts.rest_s, 0.0))),
    ]
    return stacked_chart(
        "GPT-3 175B, 128 GPUs",
        bars,
        names,
        value_name="step time, s",
        show=lambda value: f"{value:.2f}",
        most=1.15 * parts.spmd_s,
        rule=parts.jaxpp_s,
    )
