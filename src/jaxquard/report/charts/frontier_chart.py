"""Time against memory, as SVG: the Pareto frontier of plans, a sharding plan on it, and the baselines beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from jaxquard.intraop.plan.sharding_plan import ShardingPlan
from jaxquard.report.charts.chart_parts import (
    GREY,
    INK,
    Frame,
    draw_legend,
    draw_line,
    draw_svg,
    draw_text,
    draw_value_axis,
    tick_times,
)
from jaxquard.report.charts.place_labels import Box, Point, place_labels

_WIDTH, _PLOT_HEIGHT = 700.0, 320.0
_BLUE, _PALE, _ORANGE, _RED = "#1d4ed8", "#93b4f5", "#d97706", "#b91c1c"
_LABEL_SIZE = 11.5


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPoint:
    """A plan with a name."""

    name: str
    time_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plane:
    """The places of times and sizes; the frame has milliseconds upwards."""

    frame: Frame
    most_bytes: float

    def x(self, size_bytes: float) -> float:
        return self.frame.left + size_bytes / self.most_bytes * (self.frame.right - self.frame.left)

    def place(self, time_s: float, size_bytes: int) -> Point:
        return self.x(size_bytes), self.frame.y(time_s * 1e3)


def frontier_chart(
    title: str,
    frontier: Sequence[tuple[float, int]],
    *,
    chosen: NamedPoint,
    alternatives: Sequence[NamedPoint] = (),
    limit_bytes: int | None = None,
) -> str:
    """Draws the chart and returns its SVG.

    Args:
        frontier: seconds and bytes of its points.
        chosen: the plan that was chosen.
        alternatives: others, by the same prices; those of equal time and size share a dot.
        limit_bytes: a line at the memory that there is; left out where it is far beyond all points.
    """
    entries = [("chosen", _BLUE), ("other plans", _ORANGE), ("fastest for so much memory", _PALE)]
    legend, top = draw_legend(12, 44, entries, right=_WIDTH)
    plane = _plane([(one.time_s, one.size_bytes) for one in (chosen, *alternatives)] + list(frontier), top=top + 26)
    lines = _steps(plane, frontier)
    parts = [
        draw_text(12, 20, title, size=14, weight=600),
        *legend,
        *draw_value_axis(plane.frame, "predicted time of a step, ms", lambda tick: f"{tick:g}"),
        *_size_axis(plane),
        *_limit(plane, limit_bytes),
        *(draw_line(*line, color=_PALE, width=2) for line in lines),
        *_points(plane, frontier),
        *_named(plane, chosen, alternatives, lines),
    ]
    return draw_svg(_WIDTH, plane.frame.bottom + 48, title, parts)


def _plane(points: Sequence[tuple[float, int]], *, top: float) -> _Plane:
    most_s, most_bytes = max(time_s for time_s, _ in points), max(size_bytes for _, size_bytes in points)
    frame = Frame(left=52, right=_WIDTH - 12, top=top, bottom=top + _PLOT_HEIGHT, most=1.12 * most_s * 1e3)
    return _Plane(frame=frame, most_bytes=1.12 * most_bytes)


def _size_axis(plane: _Plane) -> list[str]:
    frame = plane.frame
    unit_bytes, unit = (2**30, "GiB") if plane.most_bytes >= 2**30 else (2**20, "MiB")
    most = plane.most_bytes / unit_bytes
    parts = [draw_line(frame.left, frame.bottom, frame.right, frame.bottom, color=GREY)]
    for tick in tick_times(most, width_per_s=(frame.right - frame.left) / most, spacing=60):
        x = plane.x(tick * unit_bytes)
        parts.append(draw_line(x, frame.bottom, x, frame.bottom + 4, color=GREY))
        parts.append(draw_text(x, frame.bottom + 17, f"{tick:g}", size=11, fill=GREY, anchor="middle"))
    name = f"predicted memory of a device, {unit}"
    parts.append(draw_text(frame.right, frame.bottom + 37, name, size=11, fill=GREY, anchor="end"))
    return parts


def _limit(plane: _Plane, limit_bytes: int | None) -> list[str]:
    if limit_bytes is None or limit_bytes > plane.most_bytes:
        return []
    x = plane.x(limit_bytes)
    return [
        draw_line(x, plane.frame.top, x, plane.frame.bottom, color=_RED, width=1.2),
        draw_text(x - 5, plane.frame.top + 10, "limit", size=11, fill=_RED, anchor="end"),
    ]


def _steps(plane: _Plane, frontier: Sequence[tuple[float, int]]) -> list[Box]:
    """Level from a point to the next larger one, then down to it."""
    places = sorted(plane.place(*point) for point in frontier)
    ends = [*places[1:], *((plane.frame.right, y) for _, y in places[-1:])]
    lines = []
    for (x, y), (next_x, next_y) in zip(places, ends, strict=True):
        lines += [(x, y, next_x, y), (next_x, y, next_x, next_y)]
    return lines


def _points(plane: _Plane, frontier: Sequence[tuple[float, int]]) -> list[str]:
    return [
        _dot(plane.place(*point), "#ffffff", _PALE, _in_words("on the frontier", *point), radius=2.5)
        for point in frontier
    ]


def _named(plane: _Plane, chosen: NamedPoint, alternatives: Sequence[NamedPoint], lines: Sequence[Box]) -> list[str]:
    names: dict[tuple[float, int], list[str]] = {}
    for one in (chosen, *alternatives):
        names.setdefault((one.time_s, one.size_bytes), []).append(one.name)
    labels = [" = ".join(of_point) for of_point in names.values()]
    places = [plane.place(*point) for point in names]
    frame = plane.frame
    within = (frame.left, frame.top, frame.right, frame.bottom)
    spots = place_labels(places, labels, size=_LABEL_SIZE, within=within, lines=lines)
    drawn = []
    for number, (point, label) in enumerate(zip(names, labels, strict=True)):
        (x, y), anchor = spots[number]
        drawn.append(_halo(x, y, label, anchor=anchor, weight=400 if number else 600))
        fill = _ORANGE if number else _BLUE
        drawn.append(_dot(places[number], fill, "#ffffff", _in_words(label, *point), radius=4.5 if number else 6))
    return drawn


def _halo(x: float, y: float, text: str, *, anchor: str, weight: int) -> str:
    """A line of text that stays readable on top of lines."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{_LABEL_SIZE:g}" fill="{INK}" font-weight="{weight}" '
        f'text-anchor="{anchor}" stroke="#ffffff" stroke-width="3" paint-order="stroke">{escape(text)}</text>'
    )


def _dot(place: Point, fill: str, stroke: str, hint: str, *, radius: float) -> str:
    return (
        f'<circle cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="{radius:g}" fill="{fill}" stroke="{stroke}" '
        f'stroke-width="1.4"><title>{escape(hint)}</title></circle>'
    )


def _in_words(name: str, time_s: float, size_bytes: int) -> str:
    return f"{name}: {time_s * 1e3:.3g} ms, {size_bytes / 2**20:.4g} MiB"


def plan_chart(plan: ShardingPlan, *, title: str, limit_bytes: int | None = None) -> str:
    """Draws time against memory and returns the SVG; baselines without a price are left out."""
    alternatives = [
        NamedPoint(name=baseline.name, time_s=baseline.time_s, size_bytes=baseline.size_bytes)
        for baseline in plan.baselines
        if baseline.time_s != float("inf")
    ]
    chosen = NamedPoint(name="the plan", time_s=plan.time_s, size_bytes=plan.size_bytes)
    return frontier_chart(title, plan.frontier, chosen=chosen, alternatives=alternatives, limit_bytes=limit_bytes)
