"""Dots over two axes, and rows of tiles: where things stand, what is written and escaped."""

from xml.etree import ElementTree

import pytest

from jaxquard.report.charts.tile_chart import TileGroup, tile_chart
from jaxquard.report.charts.xy_chart import Dot, DotSeries, xy_chart

SVG = "{http://www.w3.org/2000/svg}"


def dots(chart):
    found = ElementTree.fromstring(chart).iter(f"{SVG}circle")
    return [(float(dot.attrib["cx"]), float(dot.attrib["cy"]), dot[0].text) for dot in found]


def texts(chart):
    return [text.text for text in ElementTree.fromstring(chart).iter(f"{SVG}text")]


def draw(*points, **options):
    series = DotSeries(
        name="A & B", color="#111111", dots=tuple(Dot(x=x, y=y, hint=f"<{x}>") for x, y in points), **options
    )
    return series


def test_dots_stand_where_their_numbers_are():
    chart = xy_chart("Title", [draw((0.0, 0.0), (10.0, 20.0), (20.0, 40.0))], x_name="layers", y_name="seconds")
    (left, bottom, _), (x, y, hint), (right, top, _) = dots(chart)
    assert x == pytest.approx((left + right) / 2, abs=0.1)
    assert y == pytest.approx((top + bottom) / 2, abs=0.1)
    assert top < bottom
    assert hint == "<10.0>"
    assert {"Title", "A & B", "layers", "seconds", "10", "20"} <= set(texts(chart))


def test_a_diagonal_has_one_scale():
    chart = xy_chart("Title", [draw((4.0, 2.0), (2.0, 4.0))], x_name="x", y_name="y", is_diagonal=True)
    (_, _, _), (_, _, _) = dots(chart)
    ticks = [text for text in texts(chart) if text.isdigit()]
    assert ticks.count("4") == 2
    lines = [
        line.attrib for line in ElementTree.fromstring(chart).iter(f"{SVG}line") if line.attrib["stroke"] == "#9ca3af"
    ]
    assert len(lines) == 1


def test_a_line_joins_its_dots():
    chart = xy_chart("Title", [draw((1.0, 1.0), (2.0, 3.0), is_line=True)], x_name="x", y_name="y")
    (line,) = ElementTree.fromstring(chart).iter(f"{SVG}polyline")
    assert len(line.attrib["points"].split()) == 2


def test_tiles_have_the_colour_of_their_word():
    groups = [
        TileGroup(name="segment 0", headings=("mlp up", "mlp down")),
        TileGroup(name="segment 1", headings=("head",)),
    ]
    rows = [("ours", ("rows", "columns", "rows")), ("theirs", ("rows", "odd & new", "rows"))]
    chart = tile_chart("Title", groups, rows, colors={"rows": "#111111", "columns": "#222222"})
    boxes = list(ElementTree.fromstring(chart).iter(f"{SVG}rect"))
    # One of each colour is in the legend.
    assert [box.attrib["fill"] for box in boxes].count("#111111") == 1 + 4
    assert [box.attrib["fill"] for box in boxes].count("#222222") == 1 + 1
    hints = [box[0].text for box in boxes if len(box)]
    assert "theirs, mlp down: odd & new" in hints
    assert texts(chart).count("mlp") == 2
    xs = [float(box.attrib["x"]) for box in boxes if len(box)][:3]
    assert xs == sorted(xs)
