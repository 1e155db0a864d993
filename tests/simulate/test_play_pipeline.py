"""Pipelines against an independent event player, closed forms and a naive count of bytes."""

import math
import pickle
import time
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.errors import ScheduleError
from jaxquard.ir.timeline import Track
from jaxquard.schedules import Custom, GPipe, Interleaved, OneFOneB, TaskTimes, play_rows
from jaxquard.simulate import ActorLink, StageCost, play_pipeline
from tests.schedules.strategies import schedules
from tests.simulate.pipeline_oracle import bytes_at, lists_of, lives_of, play_events, play_synchronous, split

# Whole numbers and quarters, so that sums are exact whatever their order.
seconds = st.integers(1, 9).map(float)
sizes = st.integers(0, 50)
PHASES = {"F": "forward_s", "B": "backward_s", "I": "input_gradient_s", "W": "weight_gradient_s"}


@st.composite
def stage_costs(draw):
    activation = draw(sizes)
    return StageCost(
        forward_s=draw(seconds),
        input_gradient_s=draw(seconds),
        weight_gradient_s=draw(seconds),
        output_bytes=draw(sizes),
        weight_bytes=draw(sizes),
        gradient_bytes=draw(sizes),
        activation_bytes=activation,
        deferred_bytes=draw(st.integers(0, activation)),
        forward_working_bytes=draw(sizes),
        backward_working_bytes=draw(sizes),
    )


@st.composite
def pipelines(draw):
    schedule = draw(schedules(max_actors=4))
    costs = [draw(stage_costs()) for _ in range(schedule.num_stages)]
    actors = range(schedule.num_actors)
    links = {
        (source, target): ActorLink(
            latency_s=draw(st.integers(0, 6)), bandwidth_bytes_per_s=draw(st.sampled_from([0.5, 4.0, math.inf]))
        )
        for source in actors
        for target in actors
        if source != target
    }
    return schedule, costs, links, draw(st.integers(1, 6))


def oracle_lists(schedule, costs, links, num_microbatches):
    rows = [[str(task) for task in row] for row in schedule.rows(num_microbatches)]

    def time_s(task):
        stage, phase, _ = split(task)
        return getattr(costs[stage], PHASES[phase])

    def transfer_s(task, source, target):
        stage, phase, _ = split(task)
        size = costs[stage if phase == "F" else stage - 1].output_bytes
        link = links[source, target]
        return link.latency_s + size / link.bandwidth_bytes_per_s

    return rows, lists_of(rows, time_s, transfer_s)


def times_of(playback, track=Track.COMPUTE):
    return {span.name: (span.start_s, span.end_s) for span in playback.timeline.spans if span.track is track}


@given(pipelines())
def test_times_are_those_of_an_event_player(pipeline):
    schedule, costs, links, num_microbatches = pipeline
    _, lists = oracle_lists(*pipeline)
    runs, messages = play_events(lists)
    playback = play_pipeline(schedule, costs, num_microbatches=num_microbatches, links=links)
    assert times_of(playback) == runs
    moved = {name.split()[0]: when for name, when in times_of(playback, Track.TRANSFER).items()}
    assert moved == {name: when for name, when in messages.items() if when[1] > when[0]}
    assert playback.step_time_s == max(end for _, end in runs.values())


@given(pipelines())
def test_memory_is_a_naive_count(pipeline):
    schedule, costs, links, num_microbatches = pipeline
    rows, lists = oracle_lists(*pipeline)
    runs, messages = play_events(lists)
    playback = play_pipeline(schedule, costs, num_microbatches=num_microbatches, links=links)
    lives = lives_of(rows, runs, messages, lambda stage: asdict(costs[stage]))
    moments = sorted({0.0, *(moment for when in (*runs.values(), *messages.values()) for moment in when)})
    for memory, of_actor in zip(playback.memory, lives, strict=True):
        counted = [bytes_at(of_actor, moment) for moment in moments]
        assert [memory.at(moment) for moment in moments] == counted
        assert memory.peak_bytes == max(counted)
        assert sum(memory.peak_parts().values()) == memory.peak_bytes == memory.at(memory.peak_s)


@given(pipelines())
def test_synchronous_sends_are_the_smallest_times_that_meet_the_rules(pipeline):
    schedule, costs, links, num_microbatches = pipeline
    _, lists = oracle_lists(*pipeline)
    playback = play_pipeline(schedule, costs, num_microbatches=num_microbatches, links=links, synchronous_sends=True)
    assert times_of(playback) == play_synchronous(lists)


@given(pipelines())
def test_rows_play_as_their_schedule_does(pipeline):
    schedule, costs, links, num_microbatches = pipeline
    of_schedule = play_pipeline(schedule, costs, num_microbatches=num_microbatches, links=links)
    rows = schedule.rows(num_microbatches)
    of_rows = play_pipeline(rows, costs, links=links)
    assert of_rows.timeline == of_schedule.timeline
    assert of_rows.peaks_bytes == of_schedule.peaks_bytes
    assert (
        play_pipeline(Custom(rows), costs, num_microbatches=num_microbatches, links=links).timeline == of_rows.timeline
    )


@given(schedules(), st.integers(1, 10), seconds, seconds, seconds)
def test_equal_stages_play_as_the_schedules_own_player_has_it(schedule, num_microbatches, forward, back, weight):
    times = TaskTimes(forward_s=forward, input_gradient_s=back, weight_gradient_s=weight)
    expected = play_rows(schedule.rows(num_microbatches), times)
    cost = StageCost(
        forward_s=forward, input_gradient_s=back, weight_gradient_s=weight, activation_bytes=1, deferred_bytes=1
    )
    playback = play_pipeline(schedule, [cost] * schedule.num_stages, num_microbatches=num_microbatches)
    assert playback.timeline == expected.timeline
    assert playback.bubble == pytest.approx(expected.bubble)
    assert playback.peaks_bytes == expected.peak_activations


def cost(**changes):
    return StageCost(**({"forward_s": 1.0, "input_gradient_s": 1.0, "weight_gradient_s": 1.0} | changes))


def test_the_bubble_of_1f1b_is_its_formula():
    for num_stages, num_microbatches in ((4, 8), (8, 32), (2, 1)):
        playback = play_pipeline(OneFOneB(num_stages), [cost()] * num_stages, num_microbatches=num_microbatches)
        assert playback.bubble == pytest.approx((num_stages - 1) / (num_microbatches + num_stages - 1))
        assert sum(playback.actor_bubbles) / num_stages == pytest.approx(playback.bubble)


def test_work_around_the_loop():
    costs = [cost(gather_s=0.5, gradient_sum_s=2.0, update_s=0.25)] * 4
    rows = Interleaved(4, 2)
    after, beside = (
        play_pipeline(rows, costs, num_microbatches=2, overlap_gradient_sums=overlaps) for overlaps in (False, True)
    )
    # Two stages an actor: 1 s of gathers, 4 s of sums, 0.5 s of updates.
    assert after.starts_s.min() == 1.0
    assert after.step_time_s == 1.0 + after.loop_time_s + 4.0 + 0.5
    assert beside.loop_time_s == after.loop_time_s
    assert beside.step_time_s == 1.0 + after.loop_time_s + 2.0 + 0.5
    assert after.bubble == beside.bubble
    names = [span.name for span in after.timeline.spans if span.actor == 1]
    assert names[0] == "gather weights"
    assert names[-3:] == ["sum gradients of stage 3", "sum gradients of stage 1", "update"]


def test_a_link_carries_one_transfer_at_a_time():
    link = {(0, 1): ActorLink(latency_s=5.0), (1, 0): ActorLink()}
    playback = play_pipeline(GPipe(2), [cost()] * 2, num_microbatches=3, links=link)
    sends = [(span.start_s, span.end_s) for span in playback.timeline.spans if span.track is Track.TRANSFER]
    assert sends == [(1.0, 6.0), (6.0, 11.0), (11.0, 16.0)]


def test_forwards_alone_keep_nothing():
    rows = Custom(["0F0,0F1", "1F0,1F1"]).rows(2)
    playback = play_pipeline(rows, [cost(activation_bytes=7)] * 2)
    assert playback.peaks_bytes == (7, 7)
    assert playback.memory[0].at(2.0) == 0


def test_sixty_four_stages_and_a_thousand_microbatches_take_a_second_at_most():
    costs = [cost(output_bytes=10, activation_bytes=3, weight_bytes=5)] * 64
    links = {(a, b): ActorLink(latency_s=0.01) for a in range(64) for b in range(64) if a != b}
    taken_s = []
    for schedule in (OneFOneB(64), Interleaved(64, 8)):
        start_s = time.process_time()
        playback = play_pipeline(schedule, costs, num_microbatches=1024, links=links)
        assert playback.step_time_s > 0
        assert playback.peaks_bytes[0] > 0
        taken_s.append(time.process_time() - start_s)
    assert min(taken_s) < 1.0, taken_s


def test_costs_of_too_few_stages():
    with pytest.raises(ScheduleError) as caught:
        play_pipeline(OneFOneB(4), [cost()] * 3, num_microbatches=2)
    assert str(caught.value) == ("the schedule has 4 stages, but there are costs of 3. Give one for each stage.")


def test_a_schedule_without_microbatches():
    with pytest.raises(ScheduleError, match=r"OneFOneB\(2\) needs num_microbatches to be played, but got none"):
        play_pipeline(OneFOneB(2), [cost()] * 2)


def test_rows_that_wait_for_each_other():
    rows = tuple(reversed(OneFOneB(2).rows(2)[0])), OneFOneB(2).rows(2)[1]
    with pytest.raises(ScheduleError, match="actor 0 runs 0B1 before 0F1"):
        play_pipeline(rows, [cost()] * 2)


@pytest.mark.parametrize(("field", "value"), [("forward_s", -1.0), ("update_s", float("nan")), ("output_bytes", -3)])
def test_impossible_costs(field, value):
    with pytest.raises(ScheduleError, match=f"StageCost needs {field} to be 0 or more, but it is {value}"):
        cost(**{field: value})


def test_memory_is_that_of_the_costs_that_were_played():
    """It is added up when it is asked for, which may be after the caller's list has changed."""
    cost = StageCost(forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0, weight_bytes=100, output_bytes=3)
    costs = [cost, cost]
    played, expected = (play_pipeline(OneFOneB(2), costs, num_microbatches=4) for _ in range(2))
    peaks, sizes = expected.peaks_bytes, expected.transfers.sizes_bytes.tolist()
    costs[0] = replace(cost, weight_bytes=10**6, output_bytes=7)
    assert played.peaks_bytes == peaks
    assert played.transfers.sizes_bytes.tolist() == sizes
    memory = pickle.loads(pickle.dumps(played.memory[0]))
    assert memory.peak_parts() == expected.memory[0].peak_parts()
