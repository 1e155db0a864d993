"""Profiles of schedules against whole steps, played."""

import itertools

import numpy as np
import pytest

from jaxquard.planner.stages.schedule_profile import find_order, profile_schedule
from jaxquard.planner.stages.segment_costs import PipelineShape
from jaxquard.schedules import SCHEDULES
from jaxquard.simulate import ActorLink, StageCost, play_pipeline

from .generate_chains import LOOPED, V_SHAPED

COST = StageCost(forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0, activation_bytes=1)


def shape_of(schedule, num_actors, num_microbatches):
    num_stages = 2 * num_actors if schedule in (*LOOPED, *V_SHAPED) else num_actors
    return PipelineShape(
        num_actors=num_actors, num_stages=num_stages, schedule=schedule, num_microbatches=num_microbatches
    )


@pytest.mark.thin(3)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("num_actors", [2, 3, 4, 8])
def test_weights_of_a_few_rounds_are_those_of_all(schedule, num_actors):
    for num_microbatches in (1, 2, num_actors, 3 * num_actors, 5 * num_actors, 5 * num_actors + 1, 9 * num_actors):
        shape = shape_of(schedule, num_actors, num_microbatches)
        profile, order = profile_schedule(shape), find_order(shape)
        costs = [COST] * shape.num_stages
        whole_s = play_pipeline(order, costs, num_microbatches=num_microbatches).step_time_s
        chunks = shape.num_stages // num_actors
        estimated_s = 3 * ((num_microbatches - 1) * chunks + profile.fill_weight * shape.num_stages)
        assert whole_s == pytest.approx(estimated_s)
        transfer_s = 2.0**-12
        actors = profile.actor_of
        pairs = [pair for pair in itertools.pairwise(actors) if pair[0] != pair[1]]
        links = {pair: ActorLink(latency_s=transfer_s) for one in pairs for pair in (one, one[::-1])}
        slower_s = play_pipeline(order, costs, num_microbatches=num_microbatches, links=links).step_time_s
        assert slower_s == pytest.approx(estimated_s + profile.transfer_weight * len(pairs) * transfer_s, rel=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_counted_activations_are_those_played(schedule):
    for num_microbatches in (1, 3, 8, 12):
        shape = shape_of(schedule, 4, num_microbatches)
        profile = profile_schedule(shape)
        sizes = np.arange(1, shape.num_stages + 1)
        costs = [
            StageCost(forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0, activation_bytes=int(size))
            for size in sizes
        ]
        played = play_pipeline(find_order(shape), costs, num_microbatches=num_microbatches)
        counted = np.zeros(4, dtype=np.int64)
        np.maximum.at(counted, profile.kept_actors, profile.kept @ sizes)
        assert tuple(counted) == played.peaks_bytes


def test_uneven_stages_of_an_actor_cost_what_they_play():
    shape = shape_of("interleaved", 4, 8)
    profile = profile_schedule(shape)
    assert 0.3 < profile.stage_weight < 0.6
    costs = [
        StageCost(forward_s=time_s, input_gradient_s=time_s, weight_gradient_s=time_s)
        for time_s in [0.5] * 4 + [1.5] * 4
    ]
    played_s = play_pipeline(find_order(shape), costs, num_microbatches=8).step_time_s
    loads_s = (1 - profile.stage_weight) * 2.0 + profile.stage_weight * 2 * 1.5
    assert played_s == pytest.approx(3 * (7 * loads_s + profile.fill_weight * 8))
    assert profile_schedule(shape_of("1f1b", 4, 12)).stage_weight == 0


def test_alpas_objective_is_that_of_one_stage_per_actor():
    assert profile_schedule(shape_of("1f1b", 4, 12)).fill_weight == pytest.approx(1.0)
    assert profile_schedule(shape_of("gpipe", 4, 12)).fill_weight == pytest.approx(1.0)
    assert profile_schedule(shape_of("interleaved", 4, 12)).fill_weight < 0.7
    assert profile_schedule(shape_of("1f1b", 4, 12)).most_kept.tolist() == [4, 3, 2, 1]
