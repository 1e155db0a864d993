"""Playing: spans and bubbles against a brute-force longest path, transfers, and speed."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.errors import ScheduleError
from jaxquard.ir.timeline import Track
from jaxquard.schedules import GPipe, OneFOneB, TaskTimes, ZeroBubbleH2, play_rows
from tests.machine_pace import machine_pace
from tests.schedules import oracle
from tests.schedules.strategies import MANY, microbatch_counts, schedules

# Eighths add up without rounding, so that results can be compared exactly.
durations = st.integers(0, 24).map(lambda eighths: eighths / 8)


@MANY
@given(
    schedule=schedules(max_actors=3),
    num_microbatches=st.integers(1, 5),
    forward=durations,
    of_input=durations,
    of_weight=durations,
    transfer=durations,
)
def test_spans_against_brute_force(schedule, num_microbatches, forward, of_input, of_weight, transfer):
    rows = schedule.rows(num_microbatches)
    played = play_rows(
        rows,
        TaskTimes(forward_s=forward, input_gradient_s=of_input, weight_gradient_s=of_weight, transfer_s=transfer),
    )
    times = {"F": forward, "B": of_input + of_weight, "I": of_input, "W": of_weight}
    start, end = oracle.play(oracle.to_texts(rows), times, transfer)
    compute = [span for span in played.timeline.spans if span.track is Track.COMPUTE]
    assert {span.name: (span.start_s, span.end_s) for span in compute} == {
        name: (start[name], end[name]) for name in start
    }
    assert len(compute) == len(start)
    assert played.makespan_s == max(end.values()) - min(start.values())
    own = [max(map(end.get, row)) - min(map(start.get, row)) for row in oracle.to_texts(rows)]
    assert played.period_s == max(own)


@MANY
@given(schedule=schedules(max_actors=4), num_microbatches=microbatch_counts)
def test_bubble_agrees_with_the_timeline(schedule, num_microbatches):
    played = play_rows(schedule.rows(num_microbatches))
    assert played.bubble == pytest.approx(played.timeline.bubble)
    assert played.makespan_s == played.timeline.time_s
    starts = [span.start_s for span in played.timeline.spans]
    assert starts == sorted(starts)


def test_a_small_case_by_hand():
    played = play_rows(OneFOneB(2).rows(2), TaskTimes(forward_s=2, input_gradient_s=2, weight_gradient_s=1))
    actor_0 = [(s.name, s.start_s, s.end_s) for s in played.timeline.spans if s.actor == 0]
    assert actor_0 == [("0F0", 0, 2), ("0F1", 2, 4), ("0B0", 7, 10), ("0B1", 12, 15)]
    assert (played.makespan_s, played.bubble) == (15, 1 - 20 / 30)


def test_lone_steps_and_steps_in_a_row():
    played = play_rows(ZeroBubbleH2(4).rows(8))
    assert (played.makespan_s, played.period_s) == (27, 24)
    assert played.bubble == pytest.approx(1 - 24 / 27)
    assert played.period_bubble == 0


def test_transfers_have_spans_on_the_sender():
    played = play_rows(GPipe(2).rows(1), TaskTimes(transfer_s=0.5))
    transfers = [span for span in played.timeline.spans if span.track is Track.TRANSFER]
    assert [(s.actor, s.name, s.start_s, s.end_s) for s in transfers] == [
        (0, "0F0 to actor 1", 1, 1.5),
        (1, "1B0 to actor 0", 4.5, 5),
    ]


def test_a_stage_beside_its_neighbour_needs_no_transfer():
    from jaxquard.schedules import ZeroBubbleV

    played = play_rows(ZeroBubbleV(2).rows(3), TaskTimes(transfer_s=100))
    assert played.makespan_s == 18


def test_times_of_zero_and_rows_without_tasks():
    zero = TaskTimes(forward_s=0, input_gradient_s=0, weight_gradient_s=0)
    played = play_rows(GPipe(2).rows(2), zero)
    assert (played.makespan_s, played.bubble, played.period_bubble) == (0, 0, 0)
    assert play_rows(((), ())).bubble == 0


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_times_must_be_times(value):
    with pytest.raises(ScheduleError) as caught:
        TaskTimes(transfer_s=value)
    assert str(caught.value) == f"TaskTimes needs transfer_s to be 0 or more, but it is {value}. Give a time."


@pytest.mark.slow
def test_a_large_schedule_plays_quickly():
    """64 actors and 512 microbatches, in the processor's time so that a busy machine does not count."""
    rows = OneFOneB(64).rows(512)
    started = time.process_time()
    played = play_rows(rows, TaskTimes(transfer_s=0.1))
    assert time.process_time() - started < 10 * machine_pace()
    assert played.peak_activations == tuple(range(64, 0, -1))
