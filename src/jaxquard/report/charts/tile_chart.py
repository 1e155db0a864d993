"""Rows of coloured tiles under common headings, as SVG: which of a few words stands where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxquard.report.charts.chart_parts import GREY, draw_box, draw_legend, draw_svg, draw_text

_WIDTH, _ROW, _HEADING, _LEFT = 1100.0, 30.0, 12.0, 150.0
_LETTER = 0.56


@dataclass(frozen=True, slots=True, kw_only=True)
class TileGroup:
    """Neighbouring columns with a name over all of them, and headings of their own."""

    name: str
    headings: tuple[str, ...]


def tile_chart(
    title: str, groups: Sequence[TileGroup], rows: Sequence[tuple[str, Sequence[str]]], *, colors: Mapping[str, str]
) -> str:
    """Draws the chart and returns its SVG.

    Args:
        rows: a name, and a word for each column.
        colors: of the words; one that is not there is grey.
    """
    used = dict.fromkeys(word for _, words in rows for word in words)
    legend, top = draw_legend(12, 44, [(word, colors.get(word, GREY)) for word in used], right=_WIDTH)
    num_columns = sum(len(group.headings) for group in groups)
    gap = 10.0
    width = (_WIDTH - _LEFT - gap * len(groups)) / num_columns
    lines = max(len(heading.split()) for group in groups for heading in group.headings)
    start = top + 22 + lines * _HEADING
    parts = [draw_text(12, 20, title, size=14, weight=600), *legend]
    x, columns = _LEFT, []
    for group in groups:
        center = x + width * len(group.headings) / 2
        parts.append(draw_text(center, top + 12, group.name, size=11, fill=GREY, weight=600, anchor="middle"))
        for heading in group.headings:
            parts += _heading(heading, x + width / 2, start, width)
            columns.append(x)
            x += width
        x += gap
    for number, (name, words) in enumerate(rows):
        y = start + 6 + number * _ROW
        parts.append(draw_text(_LEFT - 10, y + 18, name, size=12, anchor="end"))
        for left, word, heading in zip(
            columns, words, (heading for group in groups for heading in group.headings), strict=True
        ):
            parts.append(
                draw_box(left + 1.5, y, width - 3, _ROW - 6, colors.get(word, GREY), hint=f"{name}, {heading}: {word}")
            )
            size = min(10.5, (width - 8) / (_LETTER * max(len(word), 1)))
            parts.append(draw_text(left + width / 2, y + 16, word, size=size, fill="#ffffff", anchor="middle"))
    return draw_svg(_WIDTH, start + 6 + _ROW * len(rows) + 8, title, parts)


def _heading(heading: str, x: float, bottom: float, width: float) -> list[str]:
    """The words of a heading, one below the other."""
    words = heading.split()
    size = min(10.5, (width - 4) / (_LETTER * max(map(len, words), default=1)))
    return [
        draw_text(x, bottom - (len(words) - 1 - line) * _HEADING, word, size=size, fill=GREY, anchor="middle")
        for line, word in enumerate(words)
    ]
