"""Values that stay until they change, over time, as SVG: a line of steps for each series, and a limit across."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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

_WIDTH, _PLOT_HEIGHT = 1160.0, 230.0
# Steps nearer than this on the page are drawn as the highest of them: a peak must not vanish.
_NEAREST = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeries:
    """A colour and its values, each from its time to the next one's."""

    name: str
    color: str
    times: Sequence[float]
    values: Sequence[float]


def step_chart(
    title: str,
    series: Sequence[StepSeries],
    *,
    end: float,
    time_name: str,
    value_name: str,
    show: Callable[[float], str] = lambda value: f"{value:g}",
    limit: tuple[float, str] | None = None,
) -> str:
    """Draws the chart and returns its SVG.

    Args:
        end: where the time axis ends.
        limit: a value at which a red line is drawn across, and its name.
    """
    legend, top = draw_legend(12, 44, [(one.name, one.color) for one in series], right=_WIDTH)
    highest = max([*(max(one.values) for one in series), *([limit[0]] if limit else [])], default=0.0)
    top += 26
    frame = Frame(left=64, right=_WIDTH - 14, top=top, bottom=top + _PLOT_HEIGHT, most=1.08 * highest or 1.0)
    end = end or 1.0

    def x_of(time: float) -> float:
        return frame.left + min(time, end) / end * (frame.right - frame.left)

    parts = [draw_text(12, 20, title, size=14, weight=600), *legend, *draw_value_axis(frame, value_name, show)]
    for tick in tick_times(end, width_per_s=(frame.right - frame.left) / end, spacing=80):
        parts.append(draw_text(x_of(tick), frame.bottom + 16, f"{tick:g}", size=11, fill=GREY, anchor="middle"))
    parts.append(draw_text(frame.right, frame.bottom + 34, time_name, size=11, fill=GREY, anchor="end"))
    parts += [_draw_steps(one, frame, x_of) for one in series]
    if limit is not None:
        value, name = limit
        parts.append(draw_line(frame.left, frame.y(value), frame.right, frame.y(value), color="#b91c1c", width=1.4))
        parts.append(draw_text(frame.right, frame.y(value) - 5, name, size=11, fill="#b91c1c", anchor="end"))
    parts.append(draw_line(frame.left, frame.bottom, frame.right, frame.bottom, color=GREY))
    return draw_svg(_WIDTH, frame.bottom + 42, title, parts)


def _draw_steps(one: StepSeries, frame: Frame, x_of: Callable[[float], float]) -> str:
    points: list[tuple[float, float]] = []
    for time, value in zip(one.times, one.values, strict=True):
        x, y = x_of(time), frame.y(value)
        if points and x - points[-1][0] < _NEAREST:
            points[-1] = (points[-1][0], min(points[-1][1], y))
            continue
        if points:
            points.append((x, points[-1][1]))
        points.append((x, y))
    if points:
        points.append((frame.right, points[-1][1]))
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{text}" fill="none" stroke="{one.color}" stroke-width="1.5"/>'
