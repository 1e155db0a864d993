"""Bars side by side in groups, as SVG: one colour a series, a diamond where a paper gives a number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxquard.report.charts.chart_parts import (
    GREY,
    Frame,
    draw_box,
    draw_diamond,
    draw_legend,
    draw_line,
    draw_svg,
    draw_text,
    draw_value_axis,
)

_WIDTH, _PLOT_HEIGHT = 560.0, 190.0
# A value is written above a bar that is at least so wide.
_WIDTH_FOR_A_VALUE = 19.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One value; `paper` is the number that a paper gives for it."""

    value: float
    hint: str = ""
    paper: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A colour and its bars, one a group; None where there is none."""

    name: str
    color: str
    bars: tuple[Bar | None, ...]


def bar_chart(
    title: str,
    groups: Sequence[str],
    series: Sequence[Series],
    *,
    value_name: str,
    show: Callable[[float], str],
    show_tick: Callable[[float], str],
    most: float | None = None,
    mark: str = "",
    width: float = _WIDTH,
) -> str:
    """Draws the chart and returns its SVG.

    Args:
        show: a value in words, for the bars; `show_tick` for the axis.
        most: where the axis ends; a tenth above the longest bar unless said, or at 1 where no bar has a length.
        mark: what the diamonds are, for the legend; none without it.
    """
    legend, top = draw_legend(12, 44, [(one.name, one.color) for one in series], right=width, mark=mark)
    values = [bar.value for one in series for bar in one.bars if bar is not None]
    top += 24
    most = most or 1.1 * max(values, default=0) or 1.0
    frame = Frame(left=46, right=width - 8, top=top, bottom=top + _PLOT_HEIGHT, most=most)
    step = (frame.right - frame.left) / len(groups)
    bar_width = 0.84 * step / len(series)
    parts = [draw_text(12, 20, title, size=14, weight=600), *legend, *draw_value_axis(frame, value_name, show_tick)]
    for group, name in enumerate(groups):
        start = frame.left + group * step + 0.08 * step
        parts.append(draw_text(start + 0.42 * step, frame.bottom + 17, name, size=11, anchor="middle"))
        for position, one in enumerate(series):
            bar = one.bars[group]
            if bar is not None:
                parts += _draw_bar(frame, start + position * bar_width, bar_width, bar, one.color, show)
    parts.append(draw_line(frame.left, frame.bottom, frame.right, frame.bottom, color=GREY))
    return draw_svg(width, frame.bottom + 28, title, parts)


def _draw_bar(frame: Frame, x: float, width: float, bar: Bar, color: str, show: Callable[[float], str]) -> list[str]:
    y = frame.y(bar.value)
    parts = [draw_box(x + 0.5, y, width - 1, frame.bottom - y, color, hint=f"{bar.hint}: {show(bar.value)}")]
    if width >= _WIDTH_FOR_A_VALUE:
        label = show(bar.value).replace(" %", "")
        place, fill = y - 4, GREY
        if bar.paper is not None and -6 < y - frame.y(bar.paper) < 18:
            # Where the diamond would cover it, the value goes into the bar.
            place, fill = max(frame.y(bar.paper) + 17, y + 12), "#ffffff"
        parts.append(draw_text(x + width / 2, place, label, size=min(9.5, 0.41 * width), fill=fill, anchor="middle"))
    if bar.paper is not None:
        hint = f"{bar.hint}, the paper: {show(bar.paper)}"
        parts.append(draw_diamond(x + width / 2, frame.y(bar.paper), hint=hint))
    return parts
