"""Played assignments: their terms add up, and agree with closed forms and with the counted memory."""

import itertools

import pytest
from hypothesis import given

from jaxquard.planner.stages.assign import assign_segments
from jaxquard.planner.stages.play_assignment import play_assignment
from jaxquard.planner.stages.segment_costs import PipelineShape, StageAssignment
from jaxquard.simulate import ActorLink
from tests.few_examples import few_examples

from .generate_chains import chains, equal_layers, layer, shapes

SLOW_LINKS = {pair: ActorLink(latency_s=0.1, bandwidth_bytes_per_s=4.0) for pair in itertools.permutations(range(4), 2)}


@few_examples(30)
@given(chain=chains(), shape=shapes())
def test_the_terms_are_the_step(chain, shape):
    for assignment in assign_segments(chain, shape):
        for links in ({}, SLOW_LINKS):
            played = play_assignment(chain, shape, assignment, links=links)
            assert played.times.total_s == pytest.approx(played.time_s, rel=1e-9, abs=1e-12)
            assert played.memory.total_bytes == max(played.peak_bytes)
            assert min(getattr(played.times, name) for name in played.times.__dataclass_fields__) >= 0
            assert len(played.peak_bytes) == shape.num_actors


@few_examples(30)
@given(chain=chains(), shape=shapes())
def test_no_step_is_faster_than_its_busiest_actor(chain, shape):
    for assignment in assign_segments(chain, shape):
        played = play_assignment(chain, shape, assignment)
        loads_s = [0.0] * shape.num_actors
        for stage, actor in zip(played.stages, played.actor_of, strict=True):
            loads_s[actor] += shape.num_microbatches * stage.microbatch_s + stage.step_s
        assert played.time_s >= max(loads_s) * (1 - 1e-9)
        assert played.bubble >= -1e-9


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "looped-bfs", "zero-bubble-h1", "zero-bubble-v"])
@pytest.mark.parametrize("num_microbatches", [4, 8, 12, 32])
def test_equal_stages_play_as_they_are_estimated(schedule, num_microbatches):
    num_stages = 8 if schedule in ("interleaved", "looped-bfs", "zero-bubble-v") else 4
    shape = PipelineShape(num_actors=4, num_stages=num_stages, schedule=schedule, num_microbatches=num_microbatches)
    chain = equal_layers(16, layer(activation_bytes=3, weight_bytes=2, working_bytes=1, step_s=0.25), input_bytes=0)
    (assignment,) = assign_segments(chain, shape)
    played = play_assignment(chain, shape, assignment)
    assert played.time_s == pytest.approx(assignment.time_s)
    assert played.peak_bytes == assignment.peak_bytes


def test_times_go_to_what_takes_them():
    chain = equal_layers(
        4,
        layer(
            time_s=3.0,
            recompute_s=0.5,
            communication_s=0.25,
            step_s=2.0,
            gradient_sum_s=0.5,
            weight_bytes=1,
        ),
    )
    shape = PipelineShape(num_actors=2, num_stages=2, schedule="1f1b", num_microbatches=4)
    assignment = StageAssignment(stops=(2, 4), strategies=(0, 0, 0, 0), time_s=0.0, peak_bytes=(0, 0))
    times = play_assignment(chain, shape, assignment).times
    assert (times.compute_s, times.recompute_s, times.collective_s) == (4 * 2 * 2.75, 4 * 2 * 0.5, 4 * 2 * 0.25)
    assert (times.gradient_s, times.optimizer_s) == (1.0, 3.0)
    assert times.bubble_s == pytest.approx(2 * 3.5)
    assert times.transfer_s == 0.0
    slow = play_assignment(chain, shape, assignment, links=SLOW_LINKS)
    assert slow.times.transfer_s > 0


def test_one_actor_has_no_bubble_and_keeps_one_microbatch():
    chain = equal_layers(3, layer(activation_bytes=5))
    shape = PipelineShape(num_actors=1, num_stages=1, schedule="none", num_microbatches=4)
    played = play_assignment(chain, shape, assign_segments(chain, shape)[0])
    assert (played.time_s, played.times.bubble_s, played.memory.activation_bytes) == (36.0, 0.0, 15)
    assert played.stage_memory(0, 2).activation_bytes == 30
