"""Charts: where bars end, what is written, what is escaped."""

from xml.etree import ElementTree

import pytest

from jaxquard.report.charts.bar_chart import Bar, Series, bar_chart
from jaxquard.report.charts.range_chart import Range, range_chart
from jaxquard.report.charts.stacked_chart import stacked_chart

SVG = "{http://www.w3.org/2000/svg}"


def boxes(chart, color):
    root = ElementTree.fromstring(chart)
    found = [box for box in root.iter(f"{SVG}rect") if box.attrib["fill"] == color]
    return [{name: float(box.attrib[name]) for name in ("x", "y", "width", "height")} for box in found]


def texts(chart):
    return [text.text for text in ElementTree.fromstring(chart).iter(f"{SVG}text")]


def draw(*values, **options):
    series = [Series(name="A & B", color="#111111", bars=values)]
    groups = [f"group {index}" for index in range(len(values))]
    shows = {"show": lambda value: f"{value:.2f}", "show_tick": lambda value: f"{value:g}"}
    return bar_chart("Title", groups, series, value_name="share", most=1.0, **shows, **options)


def test_bars_are_as_long_as_their_values():
    chart = draw(Bar(value=0.25), None, Bar(value=0.5))
    legend, first, second = boxes(chart, "#111111")
    assert legend["height"] == 11
    assert second["height"] == pytest.approx(2 * first["height"], abs=0.2)
    assert first["y"] + first["height"] == pytest.approx(second["y"] + second["height"], abs=0.2)
    assert {"Title", "A & B", "share", "group 1", "0.25", "0.50"} <= set(texts(chart))


def test_the_papers_number_is_a_diamond():
    chart = draw(Bar(value=0.25, hint="here", paper=0.75), mark="the paper")
    diamonds = list(ElementTree.fromstring(chart).iter(f"{SVG}polygon"))
    assert [diamond[0].text for diamond in diamonds] == [None, "here, the paper: 0.75"]
    assert "the paper" in texts(chart)


def test_a_stack_that_is_too_long_is_cut_off():
    chart = stacked_chart(
        "Title",
        [("short", (1.0, 1.0)), ("long", (3.0, 30.0))],
        [("below", "#111111"), ("above", "#222222")],
        value_name="times",
        show=lambda value: f"{value:g}",
        most=4.0,
        rule=1.0,
    )
    _, short, long = boxes(chart, "#222222")
    assert long["y"] < short["y"]
    assert long["height"] == pytest.approx(short["height"], abs=0.2)
    assert {"2", "33 ↑"} <= set(texts(chart))


def test_ranges():
    one = Range(
        name="gain",
        paper=5.0,
        ours=10.0,
        band=(10.0, 20.0),
        fitted=(4.0, 4.0),
        color="#333333",
        show=lambda v: f"{v:g}",
    )
    chart = range_chart("Title", [one], legend=("band", "fitted", "ours", "paper"))
    (band,) = boxes(chart, "#333333")
    assert band["x"] > 0
    hints = [title.text for title in ElementTree.fromstring(chart).iter(f"{SVG}title")]
    assert {"band: 10 to 20", "ours: 10", "the paper: 5"} <= set(hints)
