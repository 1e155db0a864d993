"""The checker: each message is read, and every mutation is judged by an independent oracle."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.errors import ScheduleError
from jaxquard.schedules import check_rows, read_csv
from tests.schedules import oracle
from tests.schedules.strategies import MANY, schedules

MESSAGES = {
    "stage out of range": (
        "0F0,0B0,2F0\n1F0,1B0",
        "actor 0 runs 2F0, but the last stage is 1; take 2F0 out, or use at least 3 stages",
    ),
    "microbatch out of range": (
        "0F0,0B0\n1F0,1F1,1B0",
        "actor 1 runs 1F1, but the last microbatch is 0; take 1F1 out, or use at least 2 microbatches",
    ),
    "twice on an actor": ("0F0,0B0,0F0\n1F0,1B0", "actor 0 runs 0F0 twice; keep one"),
    "twice on two actors": ("0F0,0B0\n1F0,1B0,0B0", "0B0 runs on actor 0 and again on actor 1; keep one"),
    "stage on two actors": (
        "0F0,0B0,1B0\n1F0",
        "actor 1 runs 1F0, but actor 0 runs 1B0; put all tasks of stage 1 on one actor",
    ),
    "stage missing": ("0F0,0B0", "no actor runs stage 1 of 2; add its tasks, from 1F0 on, to an actor"),
    "forward missing": ("0F0,0B0\n1B0", "1F0 is missing; add it to actor 1"),
    "backward missing": ("0F0,0B0\n1F0", "1F0 has no backward; add 1B0, or 1I0 and 1W0, to actor 1"),
    "weight gradient missing": (
        "0F0,0B0\n1F0,1I0",
        "1I0 has no 1W0; add 1W0 after it on actor 1, or run 1B0 instead",
    ),
    "input gradient missing": (
        "0F0,0B0\n1F0,1W0",
        "1W0 has no 1I0; add 1I0 before it on actor 1, or run 1B0 instead",
    ),
    "whole and split": ("0F0,0B0\n1F0,1B0,1W0", "actor 1 runs both 1B0 and 1W0; keep 1B0, or 1I0 with 1W0"),
    "backward first": ("0F0,0B0\n1B0,1F0", "actor 1 runs 1B0 before 1F0; put 1F0 first"),
    "weights first": ("0F0,0B0\n1F0,1W0,1I0", "actor 1 runs 1W0 before 1I0; put 1I0 first"),
    "own stages out of order": ("1F0,0F0,1B0,0B0", "actor 0 runs 1F0 before 0F0; put 0F0 first"),
}


@pytest.mark.parametrize("breach", MESSAGES)
def test_messages_name_the_tasks(breach):
    text, message = MESSAGES[breach]
    with pytest.raises(ScheduleError) as caught:
        check_rows(read_csv(text), num_stages=2, num_microbatches=1)
    assert str(caught.value) == message


def test_a_deadlock_names_its_cycle():
    rows = read_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1")
    with pytest.raises(ScheduleError) as caught:
        check_rows(rows, num_stages=2, num_microbatches=2)
    assert str(caught.value) == (
        "deadlock: 0B0 (actor 0) waits for 1B0 (actor 1), which comes after 1F1, which waits for 0F1 "
        "(actor 0), which comes after 0B0; move 1B0 before 1F1 on actor 1, or 0F1 before 0B0 on actor 0"
    )


def test_a_deadlock_of_three_actors():
    """Actor 1 waits for actor 2's first task, which is itself waiting."""
    rows = read_csv("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n2F0,2F1,2B0,2B1")
    with pytest.raises(ScheduleError) as caught:
        check_rows(rows, num_stages=3, num_microbatches=2)
    message = str(caught.value)
    assert message.startswith("deadlock: ")
    assert "\n" not in message
    assert "1B0 (actor 1) waits for 2B0 (actor 2), which comes after 2F1" in message
    assert "move 2B0 before 2F1 on actor 2" in message


def test_inference_needs_no_backward():
    check_rows(read_csv("0F0,0F1\n1F0,1F1"), num_stages=2, num_microbatches=2)


def test_whole_and_split_backwards_may_be_mixed():
    check_rows(read_csv("0F0,0F1,0B0,0I1,0W1\n1F0,1I0,1F1,1B1,1W0"), num_stages=2, num_microbatches=2)


@st.composite
def mutated(draw):
    """A valid schedule after up to three blind changes; the result may be valid or not."""
    schedule, num_microbatches = draw(schedules(max_actors=3)), draw(st.integers(1, 4))
    rows = [list(row) for row in schedule.rows(num_microbatches)]
    for _ in range(draw(st.integers(1, 3))):
        filled = [row for row in rows if row]
        if not filled:
            break
        row = draw(st.sampled_from(filled))
        position = draw(st.integers(0, len(row) - 1))
        match draw(st.sampled_from(["swap", "neighbours", "drop", "duplicate", "move"])):
            case "swap":
                other = draw(st.integers(0, len(row) - 1))
                row[position], row[other] = row[other], row[position]
            case "neighbours" if position:
                row[position - 1 : position + 1] = row[position], row[position - 1]
            case "drop":
                row.pop(position)
            case "duplicate":
                target = draw(st.sampled_from(rows))
                target.insert(draw(st.integers(0, len(target))), row[position])
            case "move":
                target = draw(st.sampled_from(rows))
                task = row.pop(position)
                target.insert(draw(st.integers(0, len(target))), task)
    return tuple(tuple(row) for row in rows), schedule.num_stages, num_microbatches


def find_breach(rows, num_stages, num_microbatches):
    try:
        check_rows(rows, num_stages=num_stages, num_microbatches=num_microbatches)
    except ScheduleError as error:
        return str(error)
    return None


@MANY
@given(case=mutated())
def test_mutations_are_refused_exactly_when_invalid(case):
    rows, num_stages, num_microbatches = case
    valid = oracle.is_valid(oracle.to_texts(rows), num_stages, num_microbatches)
    breach = find_breach(rows, num_stages, num_microbatches)
    assert (breach is None) == valid
    assert breach is None or "\n" not in breach


@st.composite
def reordered(draw):
    """A schedule with each row in another order that its own actor can run: valid, or a deadlock."""
    schedule, num_microbatches = draw(schedules(max_actors=3)), draw(st.integers(1, 4))
    rows = []
    for row in schedule.rows(num_microbatches):
        left, placed = {str(task): task for task in row}, []
        while left:
            ready = [name for name in left if not oracle.predecessors(name, set(left))]
            placed.append(left.pop(draw(st.sampled_from(ready))))
        rows.append(tuple(placed))
    return tuple(rows), schedule.num_stages, num_microbatches


@MANY
@given(case=reordered())
def test_deadlocks_are_found_exactly_when_there_is_one(case):
    rows, num_stages, num_microbatches = case
    valid = oracle.is_valid(oracle.to_texts(rows), num_stages, num_microbatches)
    breach = find_breach(rows, num_stages, num_microbatches)
    assert (breach is None) == valid
    assert breach is None or breach.startswith("deadlock: ")


def follow(message, rows):
    """Does the first thing that a message proposes."""
    order = re.fullmatch(r"actor (\d+) runs (\w+) before (\w+); put \w+ first", message)
    lock = re.search(r"move (\w+) before (\w+) on actor (\d+)", message)
    actor, later, sooner = order.groups() if order else (lock[3], lock[2], lock[1])
    row = rows[int(actor)]
    row.remove(sooner)
    row.insert(row.index(later), sooner)


@MANY
@given(case=reordered())
def test_following_the_messages_ends_in_rows_that_run(case):
    rows, num_stages, num_microbatches = case
    rows = oracle.to_texts(rows)
    for _ in range(sum(map(len, rows)) ** 2):
        breach = find_breach(read_csv("\n".join(map(",".join, rows))), num_stages, num_microbatches)
        if breach is None:
            break
        follow(breach, rows)
    assert oracle.is_valid(rows, num_stages, num_microbatches)
