"""The grid in the terminal: its text without colour, its width, and what colour adds."""

import re

from hypothesis import given
from hypothesis import strategies as st

from jaxquard.ir.task import Phase
from jaxquard.report.schedule_grid import schedule_grid
from jaxquard.report.schedule_palette import shade
from jaxquard.schedules import (
    Custom,
    Interleaved,
    LoopedBFS,
    OneFOneB,
    TaskTimes,
    ZeroBubbleH1,
    ZeroBubbleV,
    play_rows,
)
from tests.schedules.strategies import MANY, microbatch_counts, schedules


def grid(schedule, num_microbatches, *, width=120, color=False, times=None):
    return schedule_grid(play_rows(schedule.rows(num_microbatches), times), width=width, color=color)


def test_wide_cells():
    assert grid(OneFOneB(2), 2).plain.splitlines() == [
        "        0       2       4       6       8    peak",
        "actor 0 F0--F1--........B0------....B1------    2",
        "actor 1 ....F0--B0------F1--B1------........    1",
        "F forward   B backward   . waiting",
    ]


def test_narrower_cells_and_a_legend_of_two_lines():
    assert grid(ZeroBubbleH1(3), 4, width=45).plain.splitlines() == [
        "        0         5         10       peak",
        "actor 0 F0F1F2....I0W0F3I1W1I2W2I3W3    3",
        "actor 1 ..F0F1..I0F2I1W0F3I2W1I3W2W3    3",
        "actor 2 ....F0I0F1I1F2I2W0F3I3W1W2W3    3",
        "F forward   I input gradient",
        "W weight gradient   . waiting",
    ]


def test_one_column_cells():
    lines = grid(OneFOneB(8), 16).plain.splitlines()
    assert lines[1] == "actor 0 FFFFFFFF..............B0FB1FB2FB3FB4FB5FB6FB7FB8.B9.B0.B1.B2.B3.B4.B5    8"
    assert lines[8] == "actor 7 .......FB0FB1FB2FB3FB4FB5FB6FB7FB8FB9FB0FB1FB2FB3FB4FB5..............    1"


def test_several_stages_on_an_actor():
    assert grid(ZeroBubbleV(4), 3, width=80).plain.splitlines() == [
        "            0              5              10             15           peak",
        "actor 0 0,3 F0-F1-F2-f0-i0-w0-f1-i1-w1-I0-W0-f2-i2-w2-I1-W1-I2-W2-...    4",
        "actor 1 1,2 ...F0-f0-F1-f1-i0-w0-F2-I0-W0-f2-i1-w1-I1-i2-I2-W1-w2-W2-    4",
        "F forward   I input gradient   W weight gradient   . waiting",
        "lower case: an actor's later stages",
    ]


def test_the_labels_give_way_before_the_digits():
    """8 stages on 4 actors, 16 microbatches take 105 columns of 120: no room to name the stages."""
    lines = grid(Interleaved(8, 4), 16, color=True).plain.splitlines()
    assert lines[1].startswith("actor 0 01230123456···0 71 ·42 53")
    assert max(map(len, lines)) <= 120


def test_colours_tell_phase_and_chunk():
    text = grid(ZeroBubbleV(4), 2, color=True)
    used = {str(span.style).split(" on ")[-1] for span in text.spans}
    for phase in (Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT):
        assert {shade(phase, 0, 2), shade(phase, 1, 2)} <= used
    assert "stages of an actor" in text.plain
    assert "digits: microbatch" in text.plain


def test_scaled_when_one_column_each_is_too_much():
    lines = grid(LoopedBFS(32, 8), 64, width=80, color=True).plain.splitlines()
    assert len(lines[1]) <= 80
    assert not any(letter.isdigit() for letter in lines[3].removeprefix("actor 2").rstrip("0123456789"))
    assert "digits" not in lines[-1]


@MANY
@given(
    schedule=schedules(),
    num_microbatches=microbatch_counts,
    width=st.integers(60, 200),
    color=st.booleans(),
    eighths=st.tuples(*[st.integers(1, 40)] * 3),
)
def test_never_wider_than_asked(schedule, num_microbatches, width, color, eighths):
    forward, of_input, of_weight = (eighth / 8 for eighth in eighths)
    times = TaskTimes(forward_s=forward, input_gradient_s=of_input, weight_gradient_s=of_weight)
    lines = grid(schedule, num_microbatches, width=width, color=color, times=times).plain.splitlines()
    assert max(map(len, lines)) <= width
    rows = lines[1 : 1 + schedule.num_actors]
    assert len({len(row) for row in rows}) == 1


@MANY
@given(schedule=schedules(max_actors=4), num_microbatches=st.integers(1, 6))
def test_every_task_is_drawn_in_order(schedule, num_microbatches):
    rows = schedule.rows(num_microbatches)
    lines = schedule_grid(play_rows(rows), width=10_000, color=False).plain.splitlines()
    for row, line in zip(rows, lines[1:], strict=False):
        drawn = re.findall(r"[FBIW]\d+", line.removeprefix("actor").upper())
        assert drawn == [f"{task.phase.value}{task.microbatch}" for task in row]


def test_an_actor_without_tasks():
    assert "actor 1 ............    0" in grid(Custom(["0F0,0B0", ""]), 1).plain


def test_tasks_that_take_no_time_are_left_out():
    times = TaskTimes(forward_s=1, input_gradient_s=0, weight_gradient_s=0)
    assert "actor 0 F0--" in grid(OneFOneB(2), 1, times=times).plain
    nothing = TaskTimes(forward_s=0, input_gradient_s=0, weight_gradient_s=0)
    assert "actor 1" in grid(OneFOneB(2), 1, times=nothing).plain
