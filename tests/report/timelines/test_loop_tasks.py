"""Tasks of the loop in a measured timeline: found, moved, taken apart."""

import pytest

from jaxquard.ir.timeline import Span, Timeline, Track
from jaxquard.report.timelines.loop_tasks import loop_part, split_fused, tasks_of
from jaxquard.schedules import OneFOneB, play_rows


def span(name, start_s, end_s, *, actor=0, track=Track.COMPUTE):
    return Span(actor=actor, track=track, name=name, start_s=start_s, end_s=end_s)


MEASURED = Timeline(
    num_actors=2,
    spans=(
        span("start", 0.0, 1.0),
        span("0F0", 1.0, 2.0),
        span("0F0 to 1", 2.0, 2.5, track=Track.TRANSFER),
        span("1FB0", 2.5, 5.5, actor=1),
        span("0B0", 6.0, 8.0),
        span("after.0", 8.0, 9.0),
    ),
)


@pytest.mark.parametrize(
    ("name", "tasks"),
    [("0F3", ["0F3"]), ("12FIW30", ["12F30", "12I30", "12W30"]), ("start", []), ("after.1", []), ("F0", [])],
)
def test_what_a_span_stands_for(name, tasks):
    assert [str(task) for task in tasks_of(span(name, 0, 1))] == tasks


def test_a_transfer_is_no_task():
    assert tasks_of(span("0F3", 0, 1, track=Track.TRANSFER)) == ()


def test_the_loop_alone():
    loop = loop_part(MEASURED)
    assert [(each.name, each.start_s) for each in loop.spans] == [("0F0", 0.0), ("1FB0", 1.5), ("0B0", 5.0)]
    assert loop.time_s == 7.0
    assert loop.bubble == pytest.approx(1 - 6 / 14)


def test_no_loop_at_all():
    loop = loop_part(Timeline(num_actors=1, spans=(span("after.0", 0, 1),)))
    assert (loop.time_s, loop.bubble) == (0.0, 0.0)


def test_fused_tasks_are_taken_apart():
    parts = [(each.name, each.start_s, each.end_s) for each in split_fused(MEASURED).spans if each.actor == 1]
    assert parts == [("1F0", 2.5, 3.5), ("1B0", 3.5, 5.5)]
    assert split_fused(MEASURED).bubble == pytest.approx(MEASURED.bubble)


def test_a_played_schedule_is_all_loop():
    timeline = play_rows(OneFOneB(3).rows(4)).timeline
    assert loop_part(timeline) == split_fused(timeline) == timeline
