"""Figure 13: analysis and search by depth, drawn."""

from collections.abc import Callable, Sequence

from jaxquard.evaluate.cfp.cells.cell import Depth
from jaxquard.evaluate.cfp.cells.labels import model_label
from jaxquard.evaluate.common.numbers import digits
from jaxquard.report.charts.xy_chart import Dot, DotSeries, xy_chart

_COLORS = {"gpt": "#2f62b5", "llama": "#2a9d8f", "moe": "#d1495b"}


def draw_figure_13(depths: Sequence[Depth]) -> list[str]:
    """One chart for the analysis, one for the search."""
    if not depths:
        return []
    return [
        _draw("Analysis: blocks and segments", depths, lambda depth: depth.analysed_s),
        _draw("Search over prices", depths, lambda depth: depth.composed_s),
    ]


def _draw(title: str, depths: Sequence[Depth], value_of: Callable[[Depth], float]) -> str:
    series = [
        DotSeries(
            name=model_label(model),
            color=_COLORS.get(model, "#7d8597"),
            dots=tuple(
                Dot(
                    x=depth.num_layers,
                    y=value_of(depth),
                    hint=f"{model_label(model)}, {depth.num_layers} layers: {digits(value_of(depth))} s",
                )
                for depth in sorted(depths, key=lambda depth: depth.num_layers)
                if depth.model == model
            ),
            is_line=True,
        )
        for model in dict.fromkeys(depth.model for depth in depths)
    ]
    return xy_chart(title, series, x_name="layers", y_name="seconds")
