"""A measured timeline in the terminal, drawn as its schedule is."""

import re

from hypothesis import given
from hypothesis import strategies as st

from jaxquard.ir.timeline import Span, Timeline, Track
from jaxquard.report.timelines.schedule_palette import OTHER_COLOR
from jaxquard.report.timelines.timeline_grid import timeline_grid
from jaxquard.schedules import OneFOneB, TaskTimes, play_rows
from tests.few_examples import few_examples
from tests.report.timelines.test_loop_tasks import MEASURED
from tests.report.timelines.test_schedule_grid import LABEL, rows_of
from tests.schedules.strategies import microbatch_counts, schedules


def in_ms(timeline):
    spans = (
        Span(actor=s.actor, track=s.track, name=s.name, start_s=s.start_s / 1e3, end_s=s.end_s / 1e3)
        for s in timeline.spans
    )
    return Timeline(num_actors=timeline.num_actors, spans=tuple(spans))


def test_drawn_to_scale():
    assert timeline_grid(in_ms(MEASURED), width=44, color=False).plain.splitlines() == [
        "ms      0       2       4       6       8",
        "actor 0 ####F0--................B0------####",
        "actor 1 ..........F0--B0------..............",
        "F forward   B backward   . waiting",
        "# outside the loop",
        "1FB0, ... are one task, drawn as its parts",
    ]


def test_with_colour():
    text = timeline_grid(in_ms(MEASURED), width=120)
    assert f"on {OTHER_COLOR}" in {str(span.style) for span in text.spans}
    assert "digits: microbatch" in text.plain


def test_a_task_that_is_too_short_is_left_out():
    spans = (
        Span(actor=0, track=Track.COMPUTE, name="0F0", start_s=0.0, end_s=1e-6),
        Span(actor=0, track=Track.COMPUTE, name="0B0", start_s=0.5, end_s=1.0),
    )
    drawn = timeline_grid(Timeline(num_actors=1, spans=spans), width=60, color=False).plain.splitlines()
    assert drawn[1] == "actor 0 " + "." * 26 + "B0" + "-" * 24
    assert drawn[-2].endswith("   a column is 19.2 ms")
    assert drawn[-1] == "1 of 2 tasks: too short to draw"


def test_bands_where_they_show_more():
    """Twelve microbatches in 60 columns: with one band a forward would have 2 columns, too few for F10."""
    timeline = in_ms(play_rows(OneFOneB(2).rows(12)).timeline)
    lines = timeline_grid(timeline, width=60, color=False).plain.splitlines()
    assert lines[0] == "time 0 to 13 of 39 ms (continued below)"
    assert sum(line.startswith("time ") for line in lines) == 3
    drawn = re.findall(r"[FB]\d+", " ".join(line for line in lines if line.startswith("actor 0")))
    assert len(drawn) == 24
    assert "tasks" not in lines[-1]


@few_examples(60)
@given(schedule=schedules(max_actors=4), num_microbatches=microbatch_counts, width=st.integers(40, 200))
def test_every_task_is_drawn_or_counted(schedule, num_microbatches, width):
    timeline = play_rows(schedule.rows(num_microbatches)).timeline
    text = timeline_grid(timeline, width=width, color=False).plain
    rows = "".join("".join(each) for each in rows_of(text.splitlines(), schedule.num_actors))
    words = " ".join(text.split())
    not_drawn = re.search(r"(\d+) of (\d+) tasks: too short to draw", words)
    bare = re.search(r"(\d+) of (\d+) tasks: no room for digits", words)
    counted = sum(int(found[1]) for found in (not_drawn, bare) if found)
    assert len(LABEL.findall(rows.upper())) + counted == sum(map(len, schedule.rows(num_microbatches)))


def test_nothing_measured():
    assert "actor 1" in timeline_grid(Timeline(num_actors=2, spans=()), width=80).plain


@few_examples(60)
@given(
    schedule=schedules(max_actors=4),
    num_microbatches=microbatch_counts,
    width=st.integers(60, 200),
    forward_s=st.floats(1e-4, 1.0),
    color=st.booleans(),
)
def test_never_wider_than_asked(schedule, num_microbatches, width, forward_s, color):
    timeline = play_rows(schedule.rows(num_microbatches), TaskTimes(forward_s=forward_s)).timeline
    lines = timeline_grid(timeline, width=width, color=color).plain.splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith("actor")]
    bands = [rows[start : start + schedule.num_actors] for start in range(0, len(rows), schedule.num_actors)]
    assert all(len({len(row) for row in band}) == 1 for band in bands)
