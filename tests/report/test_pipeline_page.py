"""The page of a simulated pipeline."""

import pytest

from jaxquard.ir.timeline import Span, Timeline, Track
from jaxquard.report.charts.step_chart import StepSeries, step_chart
from jaxquard.report.pipeline_page import MOST_DRAWN, PipelineReport, pipeline_page
from jaxquard.schedules import OneFOneB
from jaxquard.simulate import StageCost, play_pipeline


def play(num_microbatches=4, **sizes):
    cost = StageCost(forward_s=1e-3, input_gradient_s=1e-3, weight_gradient_s=1e-3, **sizes)
    return play_pipeline(OneFOneB(2), [cost] * 2, num_microbatches=num_microbatches)


def test_numbers_timelines_memory_and_actors():
    measured = Timeline(num_actors=2, spans=(Span(actor=0, track=Track.COMPUTE, name="0F0", start_s=0.0, end_s=0.05),))
    report = PipelineReport(title="a < pipeline", lines=["It fits."], limit_bytes=10**10, measured=measured)
    page = pipeline_page(play(weight_bytes=2 * 10**9, activation_bytes=10**9), report)
    assert "<h1>a &lt; pipeline</h1>" in page
    assert "<p>It fits.</p>" in page
    for text in (">simulated<", ">measured<", "memory for a step", "what fills actor 0, the fullest", "4.00 GB"):
        assert text in page
    # Both timelines end where the longer one does.
    assert page.count(">50<") == 2


def test_nothing_is_drawn_of_unknown_memory_or_of_too_many_tasks():
    page = pipeline_page(play(MOST_DRAWN // 4 + 1), PipelineReport(title="x", lines=[]))
    assert "No sizes were given." in page
    assert f"{MOST_DRAWN + 4} tasks are too many to draw" in page


def test_a_peak_between_two_points_of_the_page_is_drawn():
    times = [0.0, 0.5, 0.5001, 1.0]
    series = StepSeries(name="a", color="#000000", times=times, values=[1.0, 9.0, 1.0, 0.0])
    chart = step_chart("x", [series], end=1.0, time_name="s", value_name="GB", limit=(10.0, "limit"))
    points = chart.split('polyline points="')[1].split('"')[0].split()
    heights = {float(point.split(",")[1]) for point in points}
    limit = float(chart.split('stroke="#b91c1c"')[0].rsplit('y2="', 1)[1].split('"')[0])
    bottom = max(heights)
    assert (min(heights) - limit) / (bottom - limit) == pytest.approx(0.1, abs=0.01)
    assert ">limit<" in chart
