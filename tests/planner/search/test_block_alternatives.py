"""The next best sharding of blocks, held against plays of whole assignments that are made here."""

import time
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

import jaxquard as jq
from jaxquard.cluster import load_cluster
from jaxquard.planner.prices.step_costs import StepCosts
from jaxquard.planner.search.block_alternatives import find_block_alternatives
from jaxquard.planner.stages.assign import assign_segments
from jaxquard.planner.stages.configurations.alternatives import largest_rise
from jaxquard.planner.stages.play_assignment import play_assignment
from jaxquard.planner.stages.segment_costs import PipelineShape, SegmentCosts, StageAssignment
from jaxquard.simulate.actor_link import link_actors
from tests.machine_pace import machine_pace
from tests.planner.small_losses import mlp_args, mlp_loss
from tests.planner.stages.generate_chains import layer

from .test_two_passes import make_search

FIX = {"actors": 2, "stages": 2, "model": 2, "microbatches": 4, "schedule": "1f1b", "recompute": "none"}


def searched():
    """The best configuration of two actors that shard more than rows, its costs and its links."""
    search, shapes = make_search()
    shapes = [
        shape
        for shape in shapes
        if (shape.num_stages, shape.axes) == (2, (("model", 2),))
        if (shape.num_microbatches, shape.schedule, shape.storage) == (4, "1f1b", "as used")
        if shape.recompute.value == "none"
    ]
    best = search.run(shapes).best
    return best, search.pricing.find(best.configuration.mesh, 4), search.links(best.configuration)


def test_the_added_time_is_the_difference_of_two_plays():
    best, prices, links = searched()
    shape = best.configuration
    costs = prices.known[next(iter(prices.known))]
    found = find_block_alternatives(costs, shape.shape, best.assignment, links=links)

    def play(strategies):
        return play_assignment(
            costs.segments, shape.shape, replace(best.assignment, strategies=strategies), links=links
        )

    chosen, base = best.assignment.strategies, play(best.assignment.strategies)
    assert [one.part for one in found.found] == [f"block {number}" for number in range(9)]
    for one in found.found:
        block = int(one.part.split()[1])
        segment = next(number for number, blocks in enumerate(costs.blocks) if block in blocks)
        place = costs.blocks[segment].index(block)
        names = [strategy[place] for strategy in costs.strategies[segment]]
        others = [
            (play((*chosen[:segment], other, *chosen[segment + 1 :])), name)
            for other, name in enumerate(names)
            if name != names[chosen[segment]]
        ]
        other, name = min(others, key=lambda found: found[0].time_s)
        assert one.added_s == pytest.approx(other.time_s - base.time_s, rel=1e-9)
        assert one.added_bytes == max(other.peak_bytes) - max(base.peak_bytes)
        assert one.alternative.split(" (")[0] == "/".join(name)
        assert one.chosen == "/".join(names[chosen[segment]])
        assert one.deciding == largest_rise(base.times, other.times)
        assert one.added_s > 0


def test_the_text_of_a_layer_of_a_searched_plan(golden):
    args = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), mlp_args())
    plan = jq.parallelize(mlp_loss, optax.adam(1e-3), args, cluster="h100-4", fix=FIX, cache=None).plan
    text = str(plan.explain("layer 3"))
    assert " - " not in text
    golden(text)


def chain(num_layers, *strategies):
    """Layers of one block each; the second sharding of a layer reshards to and from the first."""
    reshards_s = np.asarray([[0.0, 0.25], [0.25, 0.0]])
    segments = tuple(
        SegmentCosts(kind=0, strategies=strategies, reshards_s=reshards_s if place else None, input_bytes=8)
        for place in range(num_layers)
    )
    shared = (segments[0], *(segments[1],) * (num_layers - 1))
    names = ((("rows",),), (("columns",),), (("contracted",),))[: len(strategies)]
    return StepCosts(
        segments=shared,
        strategies=(names,) * num_layers,
        blocks=tuple((number,) for number in range(num_layers)),
        axes={"model": 2},
    )


ROWS, COLUMNS = layer(weight_bytes=4), layer(weight_bytes=4, communication_s=0.5, time_s=3.5, entry=1, exit=1)
PIPELINE = PipelineShape(num_actors=2, num_stages=2, schedule="1f1b", num_microbatches=4)


def assigned(costs, shape, *strategies):
    stops = assign_segments(costs.segments, shape)[0].stops
    chosen = strategies or (0,) * len(costs.segments)
    return StageAssignment(stops=stops, strategies=chosen, time_s=0.0, peak_bytes=(0,) * shape.num_actors)


def test_layers_that_are_alike_are_played_once_among_the_neighbours_of_most():
    costs = chain(8, ROWS, COLUMNS)
    found = find_block_alternatives(costs, PIPELINE, assigned(costs, PIPELINE))
    assert (found.num_played, found.num_left_out) == (2, 0)
    # The first layer of all, and of the second stage, reshard on one side only.
    assert [one.part for one in found.found] == ["block 1", "block 5"]
    assert {(one.alternative, one.deciding) for one in found.found} == {("columns", "collective")}
    # A microbatch takes half a second more, and reshards twice. The last stage is busy with all four in a row; the
    # first one waits for it once, and has the time.
    assert [one.added_s for one in found.found] == pytest.approx([3 * 1.0, 4 * 1.0])


def test_a_stage_that_waits_anyway_takes_it_for_nothing():
    def with_last(costs):
        last = replace(costs.segments[2], kind=1, strategies=(layer(time_s=30.0),))
        return replace(costs, segments=(*costs.segments[:2], last), strategies=(*costs.strategies[:2], ((("rows",),),)))

    same, larger = (layer(weight_bytes=4, activation_bytes=size) for size in (0, 1))
    assignment = StageAssignment(stops=(2, 3), strategies=(0, 0, 0), time_s=0.0, peak_bytes=(0, 0))
    for other, expected in ((same, (0.0, 0, "")), (larger, (0.0, 2, "memory"))):
        (one,) = find_block_alternatives(with_last(chain(3, ROWS, other)), PIPELINE, assignment).found
        assert (one.part, one.added_s, one.added_bytes, one.deciding) == ("block 0", *expected)


def test_what_does_not_fit_is_decided_by_the_memory():
    costs = chain(4, ROWS, layer(time_s=2.4, weight_bytes=9), layer(time_s=6.0, weight_bytes=4))
    assignment = assigned(costs, PIPELINE)
    fits_bytes = max(play_assignment(costs.segments, PIPELINE, assignment).peak_bytes)
    slower, *_ = find_block_alternatives(costs, PIPELINE, assignment, memory_limit_bytes=fits_bytes).found
    assert (slower.alternative, slower.added_s > 0, slower.deciding) == ("contracted", True, "compute")
    costs = chain(4, ROWS, layer(time_s=2.4, weight_bytes=900))
    faster, *_ = find_block_alternatives(costs, PIPELINE, assignment, memory_limit_bytes=fits_bytes).found
    assert (faster.alternative, faster.added_s < 0, faster.deciding) == ("columns", True, "memory")
    assert faster.added_bytes == 900 - 4


def test_a_block_without_another_sharding_has_none():
    costs = chain(4, ROWS)
    assert find_block_alternatives(costs, PIPELINE, assigned(costs, PIPELINE)).found == ()
    # On an axis of one device all shardings are the same.
    costs = replace(chain(4, ROWS, COLUMNS), axes={"model": 1})
    assert find_block_alternatives(costs, PIPELINE, assigned(costs, PIPELINE)).found == ()


def test_many_kinds_on_a_long_step_are_bounded_and_counted():
    """96 layers, each of a kind of its own, on 8 actors with two stages each."""
    costs = chain(96, ROWS, COLUMNS)
    segments = tuple(replace(one, kind=place) for place, one in enumerate(costs.segments))
    shape = PipelineShape(num_actors=8, num_stages=16, schedule="interleaved", num_microbatches=64)
    stops = tuple(range(6, 97, 6))
    assignment = StageAssignment(stops=stops, strategies=(0,) * 96, time_s=0.0, peak_bytes=(0,) * 8)
    links = link_actors(load_cluster("h100-8x8"), num_actors=8, chips_apart=8)
    start_s = time.process_time()
    few = find_block_alternatives(costs, shape, assignment, links=links)
    assert time.process_time() - start_s < 0.3 * machine_pace()
    assert (few.num_kinds, few.num_left_out) == (2, 0)
    many = find_block_alternatives(replace(costs, segments=segments), shape, assignment, links=links)
    assert many.num_kinds == 96
    assert len(many.found) == many.num_played == 96 - many.num_left_out
    assert 3 <= many.num_played <= 20
