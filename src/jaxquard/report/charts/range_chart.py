"""Numbers with their bands, a line each, as SVG: a bar for the band, a dot for ours, a diamond for the paper's.

Every line has a scale of its own, from 0 to a little over its largest number, so that shares of 1 % and of 80 % can
stand below each other; the numbers themselves stand beside it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from jaxquard.report.charts.chart_parts import GREY, draw_box, draw_diamond, draw_line, draw_svg, draw_text

_WIDTH, _ROW = 1100.0, 27.0
_LEFT, _RIGHT, _TOP = 400.0, 1010.0, 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """One line of the chart.

    Attributes:
        fitted: the ends of a second, thinner band; None: there is none.
        color: of the band.
    """

    name: str
    paper: float
    ours: float
    band: tuple[float, float]
    fitted: tuple[float, float] | None = None
    color: str
    show: Callable[[float], str]


def range_chart(title: str, ranges: Sequence[Range], *, legend: Sequence[str]) -> str:
    """Draws all lines and returns the SVG; `legend` names the band, the thin band if any, ours and the paper's."""
    height = _TOP + _ROW * len(ranges) + 10
    parts = [draw_text(12, 20, title, size=14, weight=600), *_draw_legend(legend)]
    for position, one in enumerate(ranges):
        parts += _draw_range(one, _TOP + _ROW * (position + 0.5))
    return draw_svg(_WIDTH, height, title, parts)


def _draw_legend(names: Sequence[str]) -> list[str]:
    band, *fitted, ours, paper = names
    x = _LEFT
    thin = [draw_line(x + 170, 34, x + 192, 34, color="#6b7280", width=2)] if fitted else []
    return [
        draw_box(x, 30, 22, 8, "#9ca3af"),
        draw_text(x + 28, 38, band, size=11.5),
        *thin,
        *(draw_text(x + 198, 38, name, size=11.5) for name in fitted),
        _draw_dot(x + 340, 34, ours),
        draw_text(x + 350, 38, ours, size=11.5),
        draw_diamond(x + 406, 34),
        draw_text(x + 416, 38, paper, size=11.5),
        draw_text(_RIGHT + 10, 38, paper, size=11.5, fill=GREY),
    ]


def _draw_range(one: Range, y: float) -> list[str]:
    fitted = one.fitted or one.band
    most = 1.08 * max(one.paper, one.ours, *one.band, *fitted)

    def x(value: float) -> float:
        return _LEFT + max(value, 0.0) / most * (_RIGHT - _LEFT)

    low, high = one.band
    return [
        draw_text(_LEFT - 14, y + 4, one.name, size=12, anchor="end"),
        draw_line(_LEFT, y + 11, _RIGHT, y + 11),
        *(
            [draw_line(x(fitted[0]) - 5, y + 8, x(fitted[1]) + 5, y + 8, color="#6b7280", width=2)]
            if one.fitted
            else []
        ),
        draw_box(
            x(low) - 2, y - 5, x(high) - x(low) + 4, 9, one.color, hint=f"band: {one.show(low)} to {one.show(high)}"
        ),
        _draw_dot(x(one.ours), y - 0.5, f"ours: {one.show(one.ours)}"),
        draw_diamond(x(one.paper), y - 0.5, hint=f"the paper: {one.show(one.paper)}", size=6),
        draw_text(_RIGHT + 10, y + 4, one.show(one.paper), size=12, weight=600, fill=GREY),
    ]


def _draw_dot(x: float, y: float, hint: str) -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="#ffffff" stroke="#1d4ed8" stroke-width="2.4">'
        f"<title>{escape(hint)}</title></circle>"
    )
