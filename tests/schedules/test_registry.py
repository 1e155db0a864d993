"""Schedules by name."""

import pytest

from jaxquard.errors import ScheduleError
from jaxquard.schedules import SCHEDULES, Interleaved, ZeroBubbleV, find_schedule, make_schedule


def test_names():
    assert list(SCHEDULES) == [
        "gpipe",
        "1f1b",
        "eager-1f1b",
        "interleaved",
        "looped-bfs",
        "zero-bubble-h1",
        "zero-bubble-h2",
        "zero-bubble-v",
        "dual-pipe-v",
    ]
    assert all(schedule.name == name for name, schedule in SCHEDULES.items())
    assert find_schedule("zero-bubble-v") is ZeroBubbleV


def test_making_a_schedule():
    assert make_schedule("zero-bubble-v", num_stages=8) == ZeroBubbleV(8)
    assert make_schedule("zero-bubble-v", num_stages=8, num_actors=4) == ZeroBubbleV(8)
    assert make_schedule("interleaved", num_stages=8, num_actors=4) == Interleaved(8, 4)


def test_an_unknown_name_is_answered_with_the_list():
    with pytest.raises(ScheduleError) as caught:
        make_schedule("pipedream", num_stages=4)
    assert str(caught.value) == f"no schedule is called 'pipedream'. Use one of: {', '.join(SCHEDULES)}."


def test_a_missing_number_of_actors():
    with pytest.raises(ScheduleError) as caught:
        make_schedule("looped-bfs", num_stages=8)
    assert str(caught.value) == (
        "looped-bfs needs num_actors, the number of actors among which the 8 stages are dealt out, but got none. Give "
        "one that divides 8."
    )


def test_a_wrong_number_of_actors():
    with pytest.raises(ScheduleError) as caught:
        make_schedule("1f1b", num_stages=8, num_actors=4)
    assert str(caught.value) == (
        "1f1b puts 8 stages on 8 actors, but 4 actors were asked for. Leave the number of actors out, or use "
        "interleaved or looped-bfs."
    )
