"""Dots or lines over two axes of numbers, both from 0, as SVG."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from jaxquard.report.charts.chart_parts import (
    GREY,
    Frame,
    draw_legend,
    draw_line,
    draw_svg,
    draw_text,
    draw_value_axis,
    tick_times,
)

_WIDTH, _PLOT_HEIGHT = 560.0, 260.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One pair of numbers; a pointer that rests on it shows the hint."""

    x: float
    y: float
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DotSeries:
    """A colour and its dots; joined by a line, in their order, if it is one."""

    name: str
    color: str
    dots: tuple[Dot, ...]
    is_line: bool = False


def xy_chart(
    title: str,
    series: Sequence[DotSeries],
    *,
    x_name: str,
    y_name: str,
    show: Callable[[float], str] = lambda value: f"{value:g}",
    is_diagonal: bool = False,
) -> str:
    """Draws the chart and returns its SVG.

    Args:
        show: a value on an axis in words.
        is_diagonal: both axes have one scale, and a line shows where x and y are the same.
    """
    legend, top = draw_legend(12, 44, [(one.name, one.color) for one in series], right=_WIDTH)
    dots = [dot for one in series for dot in one.dots]
    most_x, most_y = 1.06 * max(dot.x for dot in dots), 1.08 * max(dot.y for dot in dots)
    if is_diagonal:
        most_x = most_y = max(most_x, most_y)
    top += 26
    frame = Frame(left=50, right=_WIDTH - 14, top=top, bottom=top + _PLOT_HEIGHT, most=most_y)

    def x_of(value: float) -> float:
        return frame.left + value / most_x * (frame.right - frame.left)

    parts = [draw_text(12, 20, title, size=14, weight=600), *legend, *draw_value_axis(frame, y_name, show)]
    parts += _x_axis(frame, most_x, x_of, x_name, show)
    if is_diagonal:
        parts.append(draw_line(frame.left, frame.bottom, frame.right, frame.y(most_x), color="#9ca3af", width=1.2))
    for one in series:
        places = [(x_of(dot.x), frame.y(dot.y)) for dot in one.dots]
        if one.is_line:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{one.color}" stroke-width="2"/>')
        parts += [_draw_dot(place, one.color, dot.hint) for place, dot in zip(places, one.dots, strict=True)]
    return draw_svg(_WIDTH, frame.bottom + 46, title, parts)


def _x_axis(
    frame: Frame, most: float, x_of: Callable[[float], float], name: str, show: Callable[[float], str]
) -> list[str]:
    parts = [draw_line(frame.left, frame.bottom, frame.right, frame.bottom, color=GREY)]
    for tick in tick_times(most, width_per_s=(frame.right - frame.left) / most, spacing=52):
        x = x_of(tick)
        parts.append(draw_line(x, frame.bottom, x, frame.bottom + 4, color=GREY))
        parts.append(draw_text(x, frame.bottom + 17, show(tick), size=11, fill=GREY, anchor="middle"))
    parts.append(draw_text(frame.right, frame.bottom + 36, name, size=11, fill=GREY, anchor="end"))
    return parts


def _draw_dot(place: tuple[float, float], color: str, hint: str) -> str:
    return (
        f'<circle cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="3.2" fill="{color}" fill-opacity="0.8" stroke="#ffffff" '
        f'stroke-width="0.8"><title>{escape(hint)}</title></circle>'
    )
