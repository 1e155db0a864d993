"""The grid in the terminal: its text without colour, its width, and what colour adds."""

import re

from hypothesis import given
from hypothesis import strategies as st

from jaxquard.ir.task import Phase
from jaxquard.report.timelines.schedule_grid import schedule_grid
from jaxquard.report.timelines.schedule_palette import shade
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
from tests.few_examples import few_examples
from tests.schedules.strategies import microbatch_counts, schedules


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


def test_bands():
    """12 microbatches have two digits, so a cell is 3 columns wide, and 39 of them are too many for one band."""
    assert grid(OneFOneB(2), 12, width=75).plain.splitlines() == [
        "time 0 to 19 of 39 (continued below)",
        "        0              5              10             15",
        "actor 0 F0-F1-......B0----F2-B1----F3-B2----F4-B3----F5-B4----F6-",
        "actor 1 ...F0-B0----F1-B1----F2-B2----F3-B3----F4-B4----F5-B5----",
        "time 19 to 39 of 39",
        "           20             25             30             35           peak",
        "actor 0 B5----F7-B6----F8-B7----F9-B8----F10B9----F11B10---...B11---    2",
        "actor 1 F6-B6----F7-B7----F8-B8----F9-B9----F10B10---F11B11---......    1",
        "F forward   B backward   . waiting",
    ]


def test_bands_in_colour():
    lines = grid(OneFOneB(2), 12, width=75, color=True).plain.splitlines()
    assert lines[2] == "actor 0  0  1 ······  0    2   1    3   2    4   3    5   4    6 "
    assert lines[6] == "actor 0   5    7   6    8   7    9   8    10  9    11  10  ···  11      2"


def test_a_task_in_two_bands_has_its_label_in_the_longer_part():
    times = TaskTimes(forward_s=1, input_gradient_s=9, weight_gradient_s=20)
    lines = grid(OneFOneB(2), 2, width=60, times=times).plain.splitlines()
    assert [line for line in lines if line.startswith("actor 0")] == [
        "actor 0 F0F1.........................................",
        "actor 0 .................B---------------------------",
        "actor 0 B0----------------------------..B------------",
        "actor 0 B1-------------------------------------------    2",
    ]
    assert lines[7] == "actor 1 -----------------F1B-------------------------"


def test_several_stages_on_an_actor():
    assert grid(ZeroBubbleV(4), 3, width=80).plain.splitlines() == [
        "            0              5              10             15           peak",
        "actor 0 0,3 F0-F1-F2-f0-i0-w0-f1-i1-w1-I0-W0-f2-i2-w2-I1-W1-I2-W2-...    4",
        "actor 1 1,2 ...F0-f0-F1-f1-i0-w0-F2-I0-W0-f2-i1-w1-I1-i2-I2-W1-w2-W2-    4",
        "F forward   I input gradient   W weight gradient   . waiting",
        "lower case: an actor's later stages",
    ]


def test_the_labels_give_way_before_the_digits():
    """8 stages on 4 actors, 8 microbatches take 63 columns, one for each unit: no room to name the stages in 73."""
    named, plain = (grid(Interleaved(8, 4), 8, color=True, width=width).plain.splitlines() for width in (95, 73))
    assert named[1].startswith("actor 0 0,4 01230123")
    assert plain[1].startswith("actor 0 01230123")
    assert max(map(len, plain)) <= 73


def test_colours_show_phase_and_chunk():
    text = grid(ZeroBubbleV(4), 2, color=True)
    used = {str(span.style).split(" on ")[-1] for span in text.spans}
    for phase in (Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT):
        assert {shade(phase, 0, 2), shade(phase, 1, 2)} <= used
    assert "stages of an actor" in text.plain
    assert "digits: microbatch" in text.plain


def test_scaled_when_it_takes_too_many_bands():
    """64 microbatches of 32 stages: 789 units of 3 columns."""
    lines = grid(LoopedBFS(32, 8), 64, width=80, color=True).plain.splitlines()
    assert len(lines[1]) <= 80
    assert not any(letter.isdigit() for letter in lines[3].removeprefix("actor 2").rstrip("0123456789"))
    assert "digits: microbatch" not in "".join(lines)
    assert lines[-2] == "a column is 11.8 of time   3575 of 4096 tasks: too short to draw"
    assert lines[-1] == "521 of 4096 tasks: no room for digits"


LABEL = re.compile(r"[FBIW]\d+")


def rows_of(lines, num_actors):
    """The rows of every band, for each actor; the axis stands above them, and after the last comes the legend."""
    found = [[] for _ in range(num_actors)]
    for line in lines:
        match = re.match(r"actor (\d+) +(?:[\d,]+ )?(?=[.FBIWfbiw-])(\S*)", line)
        if match:
            found[int(match[1])].append(match[2])
    return found


@few_examples(60)
@given(
    schedule=schedules(),
    num_microbatches=microbatch_counts,
    width=st.integers(40, 200),
    eighths=st.tuples(*[st.integers(1, 40)] * 3),
)
def test_every_task_is_drawn_or_counted(schedule, num_microbatches, width, eighths):
    """Every task stands in the drawing with its microbatch, in order; or the legend says how many do not."""
    forward, of_input, of_weight = (eighth / 8 for eighth in eighths)
    times = TaskTimes(forward_s=forward, input_gradient_s=of_input, weight_gradient_s=of_weight)
    rows = schedule.rows(num_microbatches)
    text = grid(schedule, num_microbatches, width=width, times=times).plain
    drawn = [LABEL.findall("".join(row).upper()) for row in rows_of(text.splitlines(), schedule.num_actors)]
    num_tasks = sum(map(len, rows))
    words = " ".join(text.split())
    not_drawn = re.search(r"(\d+) of (\d+) tasks: too short to draw", words)
    bare = re.search(r"(\d+) of (\d+) tasks: no room for digits", words)
    counted = sum(int(found[1]) for found in (not_drawn, bare) if found)
    assert sum(map(len, drawn)) + counted == num_tasks
    if not counted:
        assert drawn == [[f"{task.phase.value}{task.microbatch}" for task in row] for row in rows]
    # Equal times fit into bands, unless there are very many.
    if len(set(eighths)) == 1 and width >= 80 and num_tasks < 400:
        assert not counted


@few_examples(60)
@given(
    schedule=schedules(),
    num_microbatches=microbatch_counts,
    width=st.integers(40, 200),
    color=st.booleans(),
    eighths=st.tuples(*[st.integers(1, 40)] * 3),
)
def test_never_wider_than_asked(schedule, num_microbatches, width, color, eighths):
    forward, of_input, of_weight = (eighth / 8 for eighth in eighths)
    times = TaskTimes(forward_s=forward, input_gradient_s=of_input, weight_gradient_s=of_weight)
    lines = grid(schedule, num_microbatches, width=width, color=color, times=times).plain.splitlines()
    assert max(map(len, lines)) <= width
    bands = rows_of(grid(schedule, num_microbatches, width=width, times=times).plain.splitlines(), schedule.num_actors)
    assert all(len({len(row) for row in band}) == 1 for band in zip(*bands, strict=True))


@few_examples(60)
@given(schedule=schedules(max_actors=4), num_microbatches=st.integers(1, 6))
def test_every_task_is_drawn_in_order(schedule, num_microbatches):
    rows = schedule.rows(num_microbatches)
    lines = schedule_grid(play_rows(rows), width=10_000, color=False).plain.splitlines()
    for row, line in zip(rows, lines[1:], strict=False):
        drawn = LABEL.findall(line.removeprefix("actor").upper())
        assert drawn == [f"{task.phase.value}{task.microbatch}" for task in row]


def test_an_actor_without_tasks():
    assert "actor 1 ............    0" in grid(Custom(["0F0,0B0", ""]), 1).plain


def test_tasks_that_take_no_time_are_left_out():
    times = TaskTimes(forward_s=1, input_gradient_s=0, weight_gradient_s=0)
    assert "actor 0 F0--" in grid(OneFOneB(2), 1, times=times).plain
    nothing = TaskTimes(forward_s=0, input_gradient_s=0, weight_gradient_s=0)
    assert "actor 1" in grid(OneFOneB(2), 1, times=nothing).plain
