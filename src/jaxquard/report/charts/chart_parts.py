"""The pieces that charts are drawn of, as SVG text, and what they share: fonts, greys, round values for an axis."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

FONT = "-apple-system, 'Segoe UI', Inter, 'DejaVu Sans', sans-serif"
GREY, INK, RULE = "#6b7280", "#1f2937", "#e3e6ea"
# Rough widths of letters, relative to the font's size.
_SMALL_LETTER, _LARGE_LETTER = 0.56, 0.76


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The places of the values of a chart, in SVG units; y grows downwards."""

    left: float
    right: float
    top: float
    bottom: float
    most: float

    def y(self, value: float) -> float:
        return self.bottom - min(value, self.most) / self.most * (self.bottom - self.top)


def draw_svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """A whole picture that scales with the page; screen readers hear its title."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(title, {chr(34): "&quot;"})}" font-family="{FONT}">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def draw_text(
    x: float, y: float, text: str, *, size: float = 12, fill: str = INK, weight: int = 400, anchor: str = "start"
) -> str:
    """A line of text; `y` is its baseline."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:.3g}" fill="{fill}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def draw_box(x: float, y: float, width: float, height: float, fill: str, *, hint: str = "") -> str:
    """A rectangle; a pointer that rests on it shows the hint."""
    title = f"<title>{escape(hint)}</title>" if hint else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{max(height, 0.5):.1f}" '
        f'rx="1.5" fill="{fill}">{title}</rect>'
    )


def draw_line(x1: float, y1: float, x2: float, y2: float, *, color: str = RULE, width: float = 1) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width:g}"/>'


def draw_diamond(x: float, y: float, *, hint: str = "", size: float = 5) -> str:
    """The mark of a paper's number."""
    points = f"{x:.1f},{y - size:.1f} {x + size:.1f},{y:.1f} {x:.1f},{y + size:.1f} {x - size:.1f},{y:.1f}"
    return (
        f'<polygon points="{points}" fill="#111827" stroke="#ffffff" stroke-width="1.2">'
        f"<title>{escape(hint)}</title></polygon>"
    )


def draw_legend(
    x: float, y: float, entries: Sequence[tuple[str, str]], *, right: float, mark: str = ""
) -> tuple[list[str], float]:
    """Names with their colours, in as many lines as they need, and the `y` below them."""
    parts: list[str] = []
    start = x
    for name, color in (*entries, *([(mark, "")] if mark else [])):
        letters = sum(_LARGE_LETTER if letter.isupper() else _SMALL_LETTER for letter in name)
        width = 30 + 11.5 * letters
        if x + width > right and x > start:
            x, y = start, y + 17
        parts.append(draw_box(x, y - 9, 11, 11, color) if color else draw_diamond(x + 5, y - 3))
        parts.append(draw_text(x + 16, y, name, size=11.5))
        x += width
    return parts, y + 10


def draw_value_axis(frame: Frame, name: str, show: Callable[[float], str]) -> list[str]:
    """Rules across the chart at round values, and what they mean."""
    parts = []
    for tick in tick_times(frame.most, width_per_s=(frame.bottom - frame.top) / frame.most, spacing=28):
        y = frame.y(tick)
        parts.append(draw_line(frame.left, y, frame.right, y))
        parts.append(draw_text(frame.left - 6, y + 4, show(tick), size=11, fill=GREY, anchor="end"))
    parts.append(draw_text(frame.left - 34, frame.top - 10, name, size=11, fill=GREY))
    return parts


def tick_times(makespan_s: float, *, width_per_s: float, spacing: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, at least `spacing` apart on the page.

    Args:
        makespan_s: where the axis ends.
        width_per_s: columns, or other units of the page, that a second takes.
        spacing: how many of these units two ticks must have between them.
    """
    steps = (digit * 10.0**power for power in range(-15, 16) for digit in (1, 2, 5))
    step_s = next(step for step in steps if step * width_per_s >= spacing)
    return [tick * step_s for tick in range(int(makespan_s / step_s + 1e-9) + 1)]
