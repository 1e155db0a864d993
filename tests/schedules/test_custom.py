"""Custom schedules: rows as text or tasks, checked when made."""

import pytest
from hypothesis import given

from jaxquard.errors import ScheduleError
from jaxquard.schedules import Custom, OneFOneB, ZeroBubbleH1, write_csv
from tests.schedules.strategies import MANY, microbatch_counts, schedules

LINES = ["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"]


def test_rows_are_as_given():
    custom = Custom(LINES)
    assert (custom.num_stages, custom.num_actors, custom.num_microbatches) == (2, 2, 2)
    assert custom.rows(2) == OneFOneB(2).rows(2)
    assert custom == Custom(OneFOneB(2).rows(2)) == Custom.from_csv("\n".join(LINES))
    assert hash(custom) == hash(Custom(LINES))
    assert repr(custom) == "Custom(['0F0,0F1,0B0,0B1', '1F0,1B0,1F1,1B1'])"
    assert eval(repr(custom)) == custom


def test_what_follows_from_the_rows():
    assert Custom(["1F0,1B0", "0F0,2F0,2B0,0B0"]).actor_of(0) == 1
    assert not Custom(LINES).splits_backward
    assert Custom(ZeroBubbleH1(2).rows(3)).splits_backward


@MANY
@given(schedule=schedules(max_actors=4), num_microbatches=microbatch_counts)
def test_any_schedule_can_be_written_down(schedule, num_microbatches):
    rows = schedule.rows(num_microbatches)
    custom = Custom.from_csv(write_csv(rows))
    assert custom.rows(num_microbatches) == rows
    assert [custom.actor_of(s) for s in range(custom.num_stages)] == [
        schedule.actor_of(s) for s in range(schedule.num_stages)
    ]


def test_another_number_of_microbatches_is_refused():
    with pytest.raises(ScheduleError) as caught:
        Custom(LINES).rows(8)
    assert str(caught.value) == (
        "this Custom schedule is written for num_microbatches=2, but num_microbatches=8 was asked for. Use "
        "2, or write rows for 8."
    )


@pytest.mark.parametrize("lines", [[], [""], ["", ","]])
def test_no_task_at_all(lines):
    with pytest.raises(ScheduleError) as caught:
        Custom(lines)
    assert str(caught.value) == (
        "Custom has no task. Give it a row for each actor, such as Custom(['0F0,0B0', '1F0,1B0'])."
    )


def test_rows_are_checked_when_the_schedule_is_made():
    with pytest.raises(ScheduleError, match="actor 1 runs 1B0 before 1F0; put 1F0 first"):
        Custom(["0F0,0B0", "1B0,1F0"])


def test_an_actor_may_have_nothing_to_do():
    assert Custom(["0F0,0B0", ""]).num_actors == 2
