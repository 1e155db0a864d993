"""The charts of Figures 9 to 15."""

from collections.abc import Sequence

from jaxquard.evaluate.common.numbers import mesh_label, percent, whole_percent
from jaxquard.evaluate.meshslice.figures.communication import Breakdown
from jaxquard.evaluate.meshslice.figures.layer_communication import LayerCommunication
from jaxquard.evaluate.meshslice.figures.mesh_shapes import MeshPoint
from jaxquard.evaluate.meshslice.figures.product_shapes import ProductPoint
from jaxquard.evaluate.meshslice.figures.scaling import ScalingPoint
from jaxquard.evaluate.meshslice.figures.slice_counts import SlicePoint
from jaxquard.evaluate.meshslice.paper import Paper
from jaxquard.evaluate.meshslice.setup.labels import (
    ALGORITHM_COLORS,
    ALGORITHM_LABELS,
    ESTIMATED_COLOR,
    MODEL_LABELS,
    SIMULATED_COLOR,
)
from jaxquard.report.charts.bar_chart import Bar, Series, bar_chart
from jaxquard.report.charts.stacked_chart import stacked_chart

_COMMUNICATION_PARTS = (("transfer", "#2f62b5"), ("sync", "#e0a93b"), ("launch", "#d1495b"))
# 1D TP would flatten all others.
_COMMUNICATION_MOST = 6.0
_ESTIMATED_AND_SIMULATED = (("cost model", ESTIMATED_COLOR), ("simulation", SIMULATED_COLOR))
PAPER_MARK = "the paper's text"


def draw_scaling(points: Sequence[ScalingPoint], *, paper: Paper | None = None) -> list[str]:
    """Figures 9 and 12: a chart a model; with the paper, diamonds where its text gives a number."""
    charts = []
    for model, label in MODEL_LABELS.items():
        mine = {(point.algorithm, point.num_chips): point for point in points if point.model == model}
        chips = sorted({num_chips for _, num_chips in mine})
        marks = paper_utilisations(paper, model) if paper else {}
        series = [
            Series(
                name=name,
                color=ALGORITHM_COLORS[algorithm],
                bars=tuple(
                    _scaling_bar(mine.get((algorithm, count)), marks.get((algorithm, count))) for count in chips
                ),
            )
            for algorithm, name in ALGORITHM_LABELS.items()
            if any(found == algorithm for found, _ in mine)
        ]
        groups = [f"{count:,} chips" for count in chips]
        charts.append(_draw_utilisations(label, groups, series, mark=PAPER_MARK if marks else ""))
    return charts


def paper_utilisations(paper: Paper, model: str) -> dict[tuple[str, int], float]:
    """Bars of Figure 9 that follow from the paper's text: by Table 2, the loss from 16 chips, the gain over Wang."""
    large = paper.table_2[model]["optimised"] / 100
    return {
        ("meshslice", 256): large,
        ("meshslice", 16): large / (1 - paper.value(f"loss_{model}") / 100),
        ("wang", 256): large / (1 + paper.value(f"over_wang_{model}") / 100),
    }


def draw_communication(bars: Sequence[Breakdown]) -> list[str]:
    """Figure 10: a chart a model."""
    charts = []
    for model, label in MODEL_LABELS.items():
        mine = {bar.algorithm: bar for bar in bars if bar.model == model}
        stacks = [
            (name, (mine[algorithm].transfer, mine[algorithm].sync, mine[algorithm].launch))
            for algorithm, name in ALGORITHM_LABELS.items()
        ]
        charts.append(
            stacked_chart(
                f"{label}, 256 chips",
                stacks,
                _COMMUNICATION_PARTS,
                value_name="communication / products",
                show=lambda value: f"{value:.2g}" if value < 10 else f"{value:.0f}",
                most=_COMMUNICATION_MOST,
                rule=1.0,
            )
        )
    return charts


def draw_product_shapes(points: Sequence[ProductPoint]) -> list[str]:
    """Figure 11: a chart a model."""
    charts = []
    for model, label in MODEL_LABELS.items():
        mine = {(point.algorithm, point.product): point for point in points if point.model == model}
        products = list(dict.fromkeys(product for _, product in mine))
        series = [
            Series(
                name=name,
                color=ALGORITHM_COLORS[algorithm],
                bars=tuple(_product_bar(mine[algorithm, product]) for product in products),
            )
            for algorithm, name in ALGORITHM_LABELS.items()
            if (algorithm, products[0]) in mine
        ]
        charts.append(_draw_utilisations(label, products, series, width=1100))
    return charts


def draw_mesh_shapes(points: Sequence[MeshPoint]) -> list[str]:
    """Figure 13: a chart a model."""
    charts = []
    for model, label in MODEL_LABELS.items():
        mine = [point for point in points if point.model == model]
        pairs = [(point.estimated, point.simulated) for point in mine]
        charts.append(_draw_pairs(f"{label}, 256 chips", [mesh_label(point.mesh_shape) for point in mine], pairs))
    return charts


def draw_slice_counts(points: Sequence[SlicePoint]) -> list[str]:
    """Figure 14: a chart a model."""
    charts = []
    for model, label in MODEL_LABELS.items():
        mine = [point for point in points if point.model == model]
        pairs = [(point.estimated, point.simulated) for point in mine]
        charts.append(_draw_pairs(f"{label}, 32×8 mesh", [f"S = {point.num_slices}" for point in mine], pairs))
    return charts


def draw_layer_communication(layers: Sequence[LayerCommunication]) -> list[str]:
    """Figure 15: a chart a model."""
    charts = []
    for model, label in MODEL_LABELS.items():
        mine = [layer for layer in layers if layer.model == model]
        times_s = ([layer.estimated_s for layer in mine], [layer.simulated_s for layer in mine])
        series = [
            Series(
                name=name,
                color=color,
                bars=tuple(
                    Bar(value=1e3 * time_s, hint=f"{layer.layer}, {name}")
                    for layer, time_s in zip(mine, column, strict=True)
                ),
            )
            for column, (name, color) in zip(times_s, _ESTIMATED_AND_SIMULATED, strict=True)
        ]
        charts.append(
            bar_chart(
                f"{label}, 4×4 mesh",
                [layer.layer for layer in mine],
                series,
                value_name="ms of communication",
                show=lambda value: f"{value:.1f}",
                show_tick=lambda value: f"{value:g}",
            )
        )
    return charts


def _draw_pairs(title: str, groups: Sequence[str], pairs: Sequence[tuple[float, float]]) -> str:
    """The cost model's estimate beside the simulation's result, for each group."""
    series = [
        Series(
            name=name,
            color=color,
            bars=tuple(
                Bar(value=pair[side], hint=f"{group}, {name}") for group, pair in zip(groups, pairs, strict=True)
            ),
        )
        for side, (name, color) in enumerate(_ESTIMATED_AND_SIMULATED)
    ]
    return _draw_utilisations(title, groups, series)


def _scaling_bar(point: ScalingPoint | None, paper: float | None) -> Bar | None:
    if point is None:
        return None
    hint = f"{ALGORITHM_LABELS[point.algorithm]}, {point.num_chips} chips as {mesh_label(point.mesh_shape)}"
    return Bar(value=point.utilisation, hint=hint, paper=paper)


def _product_bar(point: ProductPoint) -> Bar:
    hint = (
        f"{ALGORITHM_LABELS[point.algorithm]}, (M, N, K) = {point.shape}, {point.dataflow.upper()}, "
        f"{mesh_label(point.mesh_shape)}, {point.num_slices} iterations"
    )
    return Bar(value=point.utilisation, hint=hint)


def _draw_utilisations(
    title: str, groups: Sequence[str], series: Sequence[Series], *, mark: str = "", width: float = 560
) -> str:
    return bar_chart(
        title,
        groups,
        series,
        value_name="FLOP utilisation",
        show=percent,
        show_tick=whole_percent,
        most=1.0,
        mark=mark,
        width=width,
    )
