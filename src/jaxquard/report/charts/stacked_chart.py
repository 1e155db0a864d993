"""Bars of stacked parts, as SVG; one that is longer than the axis ends there, with its value above it."""

from collections.abc import Callable, Sequence

from jaxquard.report.charts.chart_parts import (
    GREY,
    Frame,
    draw_box,
    draw_legend,
    draw_line,
    draw_svg,
    draw_text,
    draw_value_axis,
)

_WIDTH, _PLOT_HEIGHT = 560.0, 190.0


def stacked_chart(
    title: str,
    bars: Sequence[tuple[str, Sequence[float]]],
    parts: Sequence[tuple[str, str]],
    *,
    value_name: str,
    show: Callable[[float], str],
    most: float,
    rule: float,
) -> str:
    """Draws the chart and returns its SVG.

    Args:
        bars: each a name and the values of its parts, from below.
        parts: the names and colours of the parts.
        most: where the axis ends.
        rule: a value at which a line is drawn across.
    """
    legend, top = draw_legend(12, 44, parts, right=_WIDTH)
    top += 32
    frame = Frame(left=46, right=_WIDTH - 8, top=top, bottom=top + _PLOT_HEIGHT, most=most)
    step = (frame.right - frame.left) / len(bars)
    drawn = [draw_text(12, 20, title, size=14, weight=600), *legend, *draw_value_axis(frame, value_name, show)]
    for position, (name, values) in enumerate(bars):
        drawn += _draw_bar(frame, frame.left + (position + 0.2) * step, 0.6 * step, name, values, parts, show)
    drawn.append(draw_line(frame.left, frame.y(rule), frame.right, frame.y(rule), color="#b91c1c", width=1.2))
    drawn.append(draw_line(frame.left, frame.bottom, frame.right, frame.bottom, color=GREY))
    return draw_svg(_WIDTH, frame.bottom + 28, title, drawn)


def _draw_bar(
    frame: Frame,
    x: float,
    width: float,
    name: str,
    values: Sequence[float],
    parts: Sequence[tuple[str, str]],
    show: Callable[[float], str],
) -> list[str]:
    drawn = [draw_text(x + width / 2, frame.bottom + 17, name, size=11, anchor="middle")]
    below = 0.0
    for value, (part, color) in zip(values, parts, strict=True):
        if below < frame.most:
            y, end = frame.y(below + value), frame.y(below)
            drawn.append(draw_box(x, y, width, end - y, color, hint=f"{name}, {part}: {show(value)}"))
        below += value
    label = show(below) + (" ↑" if below > frame.most else "")
    drawn.append(draw_text(x + width / 2, frame.y(below) - 5, label, size=10.5, anchor="middle"))
    return drawn
