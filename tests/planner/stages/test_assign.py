"""The assignment of segments to stages against every partition and every choice of strategies."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.errors import PlanError, ScheduleError
from jaxquard.planner.stages.assign import SegmentAssigner, assign_segments, find_cheap_begins
from jaxquard.planner.stages.play_assignment import play_assignment
from jaxquard.planner.stages.schedule_profile import find_order, profile_schedule
from jaxquard.planner.stages.segment_costs import PipelineShape, SegmentCosts
from jaxquard.simulate import ActorLink
from jaxquard.simulate.task_order import order_tasks
from tests.few_examples import few_examples

from .generate_chains import chains, equal_layers, layer, shapes


def partitions(chain, num_stages):
    """Every way to divide the chain, as stops."""
    places = [place for place in range(1, len(chain)) if chain[place].can_begin_stage]
    for inner in itertools.combinations(places, num_stages - 1):
        yield (*inner, len(chain))


def stage_sums(chain, stops, strategies):
    """For each stage: its time, its time once a step, and its bytes: fixed, of an activation, working."""
    sums = []
    for start, stop in zip((0, *stops[:-1]), stops, strict=True):
        costs = [chain[place].strategies[strategies[place]] for place in range(start, stop)]
        time_s = sum(cost.microbatch_s for cost in costs)
        for place in range(start + 1, stop):
            before = chain[place - 1].strategies[strategies[place - 1]]
            time_s += chain[place].reshards_s[before.exit, chain[place].strategies[strategies[place]].entry]
        crossing = (chain[start].input_bytes if start else 0) + (chain[stop].input_bytes if stop < len(chain) else 0)
        sums.append(
            (
                time_s,
                sum(cost.step_s for cost in costs),
                sum(cost.fixed_bytes for cost in costs),
                sum(cost.activation_bytes for cost in costs),
                max(cost.working_bytes for cost in costs) + crossing,
            )
        )
    return sums


def estimated_s(shape, chain, stops, sums, links):
    profile = profile_schedule(shape)
    loads, largest_s = [0.0] * shape.num_actors, 0.0
    total_s = 0.0
    for stage, (time_s, step_s, *_) in enumerate(sums):
        actor = profile.actor_of[stage]
        load_s = (shape.num_microbatches - 1) * time_s + step_s
        loads[actor] += load_s
        largest_s = max(largest_s, load_s)
        total_s += profile.fill_weight * time_s
        if stage and profile.actor_of[stage - 1] != actor:
            link = links.get((profile.actor_of[stage - 1], actor), ActorLink())
            total_s += profile.transfer_weight * link.time_s(chain[stops[stage - 1]].input_bytes)
    weight = profile.stage_weight
    return total_s + (1 - weight) * max(loads) + weight * shape.num_stages / shape.num_actors * largest_s


def peaks_by_order(shape, sums):
    """The memory of each actor, by a walk along its tasks."""
    peaks = []
    order = order_tasks(find_order(shape), shape.num_microbatches)
    for row in order.rows():
        stages = {task.stage for task in row}
        kept = peak = 0
        for task in row:
            if task.phase.value == "F":
                kept += sums[task.stage][3]
            peak = max(peak, kept)
            if task.phase.value in "BW":
                kept -= sums[task.stage][3]
        peaks.append(sum(sums[s][2] for s in stages) + peak + max(sums[s][4] for s in stages))
    return peaks


def brute_force(chain, shape, links):
    """All assignments: (time, fullest actor's bytes, stops, strategies)."""
    for stops in partitions(chain, shape.num_stages):
        for strategies in itertools.product(*(range(len(segment.strategies)) for segment in chain)):
            sums = stage_sums(chain, stops, strategies)
            yield estimated_s(shape, chain, stops, sums, links), max(peaks_by_order(shape, sums)), stops, strategies


all_links = st.sampled_from(
    [
        {},
        {pair: ActorLink(latency_s=0.1, bandwidth_bytes_per_s=4.0) for pair in itertools.permutations(range(4), 2)},
    ]
)


@few_examples(60)
@given(chain=chains(), shape=shapes(), links=all_links, limit=st.one_of(st.none(), st.integers(0, 120)))
def test_no_assignment_is_faster(chain, shape, links, limit):
    known = list(brute_force(chain, shape, links))
    fitting = [one for one in known if limit is None or one[1] <= limit]
    found = assign_segments(chain, shape, memory_limit_bytes=limit, links=links, max_finalists=3)
    assert bool(found) == bool(fitting)
    if found:
        assert found[0].time_s == pytest.approx(min(fitting)[0], rel=1e-9)
    for one in found:
        sums = stage_sums(chain, one.stops, one.strategies)
        assert one.time_s == pytest.approx(estimated_s(shape, chain, one.stops, sums, links), rel=1e-9)
        assert list(one.peak_bytes) == peaks_by_order(shape, sums)
        assert limit is None or max(one.peak_bytes) <= limit
    assert len({(one.stops, one.strategies) for one in found}) == len(found)


@few_examples(30)
@given(chain=chains(max_segments=4), shape=shapes(max_actors=3))
def test_the_smallest_memory_is_the_smallest(chain, shape):
    known = list(brute_force(chain, shape, {}))
    found = SegmentAssigner(chain).minimum_memory(shape)
    assert (found is None) == (not known)
    if found is not None:
        smallest = min(one[1] for one in known)
        assert max(found.peak_bytes) == smallest
        assert assign_segments(chain, shape, memory_limit_bytes=smallest)
        assert not assign_segments(chain, shape, memory_limit_bytes=smallest - 1)


@few_examples(40)
@given(chain=chains(), shape=shapes())
def test_the_bound_is_below_every_estimate(chain, shape):
    for one in assign_segments(chain, shape):
        assert SegmentAssigner(chain).bound_s(shape) <= one.time_s * (1 + 1e-9)


def test_the_smallest_memory_says_what_fills_it():
    chain = equal_layers(4, layer(optimizer_bytes=12, weight_bytes=2, activation_bytes=1))
    shape = PipelineShape(num_actors=2, num_stages=2, schedule="1f1b", num_microbatches=4)
    found = SegmentAssigner(chain).minimum_memory(shape)
    assert max(found.peak_bytes) == 2 * 14 + 2 * 2 + 8
    assert play_assignment(chain, shape, found).memory.largest_term == "optimizer"


def test_equal_layers_are_divided_equally():
    chain = equal_layers(96, layer(activation_bytes=1))
    for schedule, num_actors, num_stages in (("1f1b", 16, 16), ("interleaved", 8, 24), ("zero-bubble-v", 8, 16)):
        shape = PipelineShape(num_actors=num_actors, num_stages=num_stages, schedule=schedule, num_microbatches=32)
        (found,) = assign_segments(chain, shape)
        assert np.diff((0, *found.stops)).tolist() == [96 // num_stages] * num_stages


def test_slower_strategies_are_taken_only_where_memory_is_short():
    fast, small = layer(time_s=3.0, activation_bytes=10), layer(time_s=4.0, activation_bytes=1)
    chain = equal_layers(8, fast, small)
    shape = PipelineShape(num_actors=4, num_stages=4, schedule="1f1b", num_microbatches=16)
    (found,) = assign_segments(chain, shape, memory_limit_bytes=16 + 40)
    chosen = np.split(np.asarray(found.strategies), found.stops[:-1])
    # The first actor keeps four microbatches, the last one keeps one.
    assert 1 in chosen[0]
    assert 1 not in chosen[-1]


def test_a_hundred_equal_layers_take_well_under_a_second():
    chain = equal_layers(96, layer(activation_bytes=10), layer(time_s=4.0, activation_bytes=1), ends=layer(time_s=1.0))
    shape = PipelineShape(num_actors=16, num_stages=16, schedule="1f1b", num_microbatches=64)
    assigner = SegmentAssigner(chain)
    assigner.assign(shape)
    started = time.process_time()
    assert SegmentAssigner(chain).assign(shape)
    assert SegmentAssigner(chain).assign(shape, memory_limit_bytes=600)
    assert time.process_time() - started < 3.0


def test_few_choices_are_close_to_many():
    """A long chain keeps few choices for each run while configurations are compared."""
    strategies = [layer(time_s=3.0 + place, activation_bytes=20 - 3 * place, weight_bytes=place) for place in range(6)]
    chain = equal_layers(24, *strategies, ends=layer(time_s=1.0))
    for schedule, num_stages in (("1f1b", 4), ("zero-bubble-v", 8)):
        shape = PipelineShape(num_actors=4, num_stages=num_stages, schedule=schedule, num_microbatches=16)
        assigner = SegmentAssigner(chain)
        for limit in (300, 400):
            (fine,) = assigner.assign(shape, memory_limit_bytes=limit)
            (rough,) = assigner.assign(shape, memory_limit_bytes=limit, is_rough=True)
            assert max(rough.peak_bytes) <= limit
            assert rough.time_s <= 1.1 * fine.time_s


def test_stages_of_long_chains_begin_where_few_bytes_enter():
    costs = (layer(time_s=2.0), layer(time_s=1.0))
    chain = [
        SegmentCosts(
            kind=place % 2,
            strategies=(costs[place % 2],),
            reshards_s=np.zeros((1, 1)) if place else None,
            input_bytes=(10, 50)[place % 2],
        )
        for place in range(96)
    ]
    assert find_cheap_begins(chain, range(96)) == tuple(range(0, 96, 2))
    shape = PipelineShape(num_actors=5, num_stages=5, schedule="1f1b", num_microbatches=8)
    (found,) = SegmentAssigner(chain).assign(shape)
    assert all(stop % 2 == 0 for stop in found.stops)
    assert len(found.strategies) == 96
    # With more stages than cheap boundaries, all are used.
    many = PipelineShape(num_actors=60, num_stages=60, schedule="1f1b", num_microbatches=60)
    assert len(SegmentAssigner(chain).assign(many)[0].stops) == 60


def test_stages_begin_where_activations_are_large_too():
    """As in a convolutional network, few bytes enter the last segments: they are not the only places."""
    costs = (layer(time_s=3.0),)
    chain = [SegmentCosts(kind=0, strategies=costs, input_bytes=100 if place < 50 else 10) for place in range(60)]
    shape = PipelineShape(num_actors=4, num_stages=4, schedule="1f1b", num_microbatches=64)
    (found,) = SegmentAssigner(chain).assign(shape)
    assert found.stops == (15, 30, 45, 60)


def test_a_segment_without_a_strategy_is_refused():
    with pytest.raises(PlanError, match="segment 0 of 1 has no strategy with a price"):
        assign_segments(
            [SegmentCosts(kind=0, strategies=())],
            PipelineShape(num_actors=1, num_stages=1, schedule="none", num_microbatches=1),
        )


def test_stages_without_a_schedule_are_refused():
    with pytest.raises(ScheduleError, match="2 stages need a schedule, but the shape has 'none'"):
        assign_segments(
            equal_layers(2, layer()), PipelineShape(num_actors=1, num_stages=2, schedule="none", num_microbatches=1)
        )
