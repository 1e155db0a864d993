import json

import pytest

from jaxquard.ir.timeline import Span, Timeline, Track
from jaxquard.report.timelines.perfetto import write_perfetto


@pytest.fixture
def trace():
    timeline = Timeline(
        num_actors=2,
        spans=(
            Span(actor=0, track=Track.COMPUTE, name="0F0", start_s=0.0, end_s=0.002),
            Span(actor=0, track=Track.TRANSFER, name="0F0 to 1", start_s=0.002, end_s=0.0025, size_bytes=64),
            Span(actor=1, track=Track.COMPUTE, name="1F0", start_s=0.0025, end_s=0.0045),
        ),
    )
    return json.loads(write_perfetto(timeline))


def test_spans_are_complete_events_in_microseconds(trace):
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [(e["name"], e["pid"], e["tid"]) for e in events] == [("0F0", 0, 0), ("0F0 to 1", 0, 1), ("1F0", 1, 0)]
    assert [(e["ts"], e["dur"]) for e in events] == [
        (0.0, pytest.approx(2000)),
        (pytest.approx(2000), pytest.approx(500)),
        (pytest.approx(2500), pytest.approx(2000)),
    ]
    assert [event.get("args") for event in events] == [None, {"size_bytes": 64}, None]


def test_actors_and_tracks_are_named(trace):
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"].get("name")
        for event in trace["traceEvents"]
        if event["ph"] == "M" and event["name"].endswith("_name")
    }
    assert names == {
        ("process_name", 0, 0): "actor 0",
        ("process_name", 1, 0): "actor 1",
        ("thread_name", 0, 0): "compute",
        ("thread_name", 0, 1): "transfer",
        ("thread_name", 1, 0): "compute",
        ("thread_name", 1, 1): "transfer",
    }


def test_an_empty_timeline_is_a_trace():
    assert json.loads(write_perfetto(Timeline(num_actors=0, spans=())))["traceEvents"] == []
