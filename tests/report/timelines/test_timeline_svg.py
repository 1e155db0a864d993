"""Timelines as pictures: every span is drawn in its place, and two of them share an axis."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from jaxquard.errors import ScheduleError
from jaxquard.ir.timeline import Span, Timeline, Track
from jaxquard.report.timelines.measured_costs import measured_costs, measured_transfer_s
from jaxquard.report.timelines.timeline_svg import timeline_svg
from jaxquard.schedules import Interleaved
from jaxquard.simulate import ActorLink, StageCost, play_pipeline

SVG = "{http://www.w3.org/2000/svg}"


def span(actor, name, start_ms, end_ms, track=Track.COMPUTE):
    return Span(actor=actor, track=track, name=name, start_s=start_ms / 1e3, end_s=end_ms / 1e3)


TIMELINE = Timeline(
    num_actors=2,
    spans=(
        span(0, "0F0", 0, 10),
        span(0, "0F0 to actor 1", 10, 12, Track.TRANSFER),
        span(1, "1FB0", 12, 42),
        span(1, "update.1", 42, 45),
        span(0, "0B0", 50, 100),
    ),
)


def boxes(svg):
    """The hint of each drawn span, with the left and right end of its box."""
    found = {}
    for group in ElementTree.fromstring(svg).iter():
        title = group.find(f"{SVG}title")
        if title is None:
            continue
        box = group if group.tag == f"{SVG}rect" else group.find(f"{SVG}rect")
        x = float(box.get("x"))
        found[title.text.split(":")[0]] = (x, x + float(box.get("width")))
    return found


def test_spans_stand_where_they_ran():
    drawn = boxes(timeline_svg(TIMELINE, title="a step"))
    # A fused task is drawn as its parts: a third forward, two thirds backward.
    assert set(drawn) == {"0F0", "0F0 to actor 1", "1F0", "1B0", "update.1", "0B0"}
    start, scale = drawn["0F0"][0], (drawn["0B0"][1] - drawn["0F0"][0]) / 100
    assert drawn["1F0"][0] == pytest.approx(start + 12 * scale, abs=1)
    assert drawn["1B0"][0] == pytest.approx(start + 22 * scale, abs=1)
    assert drawn["update.1"][1] == pytest.approx(start + 45 * scale, abs=1)


def test_a_longer_axis_makes_everything_shorter():
    alone, beside = (boxes(timeline_svg(TIMELINE, title="a step", end_s=end_s)) for end_s in (None, 0.2))
    width = {key: right - left for key, (left, right) in alone.items()}
    assert beside["0B0"][1] - beside["0B0"][0] == pytest.approx(width["0B0"] / 2, abs=1)


def test_the_legend_names_what_is_there():
    svg = timeline_svg(TIMELINE, title="a < step")
    for name in ("forward", "backward", "outside the loop", "transfers (below)", "waiting", "a &lt; step"):
        assert name in svg
    assert "input gradient" not in svg
    assert re.search(r">0 ms<", svg)


def test_a_simulated_timeline_with_chunks():
    cost = StageCost(forward_s=1e-3, input_gradient_s=1e-3, weight_gradient_s=1e-3, update_s=1e-3)
    playback = play_pipeline(
        Interleaved(4, 2), [cost] * 4, num_microbatches=2, links={(0, 1): ActorLink(latency_s=1e-4)}
    )
    drawn = boxes(timeline_svg(playback.timeline, title="simulated"))
    assert {"0F0", "3B1", "update", "0F1 to actor 1"} <= set(drawn)


def test_costs_of_a_measured_timeline_are_medians():
    spans = [span(0, f"0F{number}", 100 * number, 100 * number + time) for number, time in enumerate((10, 30, 20))]
    spans += [span(0, "0I0", 400, 407), span(0, "0W0", 500, 503), span(0, "x", 600, 608, Track.TRANSFER)]
    timeline = Timeline(num_actors=1, spans=tuple(spans))
    (cost,) = measured_costs(timeline, 1)
    assert (cost.forward_s, cost.input_gradient_s, cost.weight_gradient_s) == pytest.approx((0.02, 0.007, 0.003))
    assert measured_transfer_s(timeline) == pytest.approx(0.008)
    with pytest.raises(ScheduleError, match="the trace has no task of stage 1, but the schedule has 2 stages"):
        measured_costs(timeline, 2)


def test_a_whole_backward_is_halved_into_gradients():
    first, second = measured_costs(TIMELINE, 2)
    assert (first.input_gradient_s, first.weight_gradient_s) == pytest.approx((0.025, 0.025))
    assert (second.forward_s, second.backward_s) == pytest.approx((0.01, 0.02))
