"""Time against memory: where dots and lines stand, and what is written."""

import re
from xml.etree import ElementTree

import pytest

from jaxquard.intraop.plan.plan_record import BaselinePrice
from jaxquard.intraop.plan.sharding_plan import ShardingPlan
from jaxquard.intraop.step.fingerprint import StepFingerprint
from jaxquard.report.charts.frontier_chart import NamedPoint, frontier_chart, plan_chart

SVG = "{http://www.w3.org/2000/svg}"
FRONTIER = ((0.010, 8 * 2**20), (0.020, 4 * 2**20), (0.040, 2 * 2**20))
CHOSEN = NamedPoint(name="the plan", time_s=0.020, size_bytes=4 * 2**20)


def draw(**options):
    return ElementTree.fromstring(frontier_chart("A & B", FRONTIER, chosen=CHOSEN, **options))


def texts(chart):
    return [text.text for text in chart.iter(f"{SVG}text")]


def dots(chart):
    found = {}
    for dot in chart.iter(f"{SVG}circle"):
        found[dot[0].text] = float(dot.attrib["cx"]), float(dot.attrib["cy"])
    return found


def test_dots_stand_at_their_times_and_sizes():
    found = dots(draw())
    (x8, y10), (x4, y20), (x2, y40) = (found[f"on the frontier: {words}"] for words in
                                       ("10 ms, 8 MiB", "20 ms, 4 MiB", "40 ms, 2 MiB"))  # fmt: skip
    assert x8 - x4 == pytest.approx(2 * (x4 - x2), abs=0.3)
    assert y20 - y40 == pytest.approx(2 * (y10 - y20), abs=0.3)
    assert found["the plan: 20 ms, 4 MiB"] == (x4, y20)


def test_axes_have_names_and_units():
    words = texts(draw())
    assert {"A & B", "predicted time of a step, ms", "predicted memory of a device, MiB", "the plan"} <= set(words)
    large = NamedPoint(name="large", time_s=0.1, size_bytes=3 * 2**30)
    assert "predicted memory of a device, GiB" in texts(draw(alternatives=[large]))


def test_equal_plans_share_a_dot():
    alternatives = [NamedPoint(name="data parallel", time_s=CHOSEN.time_s, size_bytes=CHOSEN.size_bytes)]
    assert "the plan = data parallel" in texts(draw(alternatives=alternatives))


def test_a_limit_is_drawn_where_it_is_near():
    assert "limit" in texts(draw(limit_bytes=5 * 2**20))
    assert "limit" not in texts(draw(limit_bytes=2**40))
    assert "limit" not in texts(draw())


def test_the_line_is_level_up_to_the_next_larger_plan():
    chart = frontier_chart("title", FRONTIER, chosen=CHOSEN)
    lines = re.findall(r'<line x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)" stroke="#93b4f5"', chart)
    assert len(lines) == 2 * len(FRONTIER)
    for (_, y1, x2, y2), (next_x1, _, next_x2, _) in zip(lines[::2], lines[1::2], strict=True):
        assert y1 == y2
        assert x2 == next_x1 == next_x2


def test_a_plan_with_its_alternatives():
    plan = ShardingPlan(
        fingerprint=StepFingerprint(types=(), key=""),
        axes={"x": 8},
        segments=(),
        specs={},
        time_s=0.011,
        sum_s=0.012,
        size_bytes=8 * 2**20,
        num_programs=0,
        baselines=(
            BaselinePrice(name="zero 1", time_s=0.030, size_bytes=2**20),
            BaselinePrice(name="failing", time_s=float("inf"), size_bytes=0),
        ),
        frontier=FRONTIER,
    )
    words = texts(ElementTree.fromstring(plan_chart(plan, title="mine")))
    assert {"mine", "the plan", "zero 1"} <= set(words)
    assert "failing" not in words
