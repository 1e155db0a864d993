"""Bounds on the time under a memory limit: below every assignment that fits, and close to equal shares."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.planner.stages.assign import SegmentAssigner
from jaxquard.planner.stages.bounds.largest_stage import bound_largest_load_s
from jaxquard.planner.stages.bounds.relaxed_bound import RelaxedBound
from jaxquard.planner.stages.schedule_profile import profile_schedule
from jaxquard.planner.stages.segment_costs import PipelineShape
from tests.few_examples import few_examples
from tests.planner.stages.generate_chains import chains, equal_layers, layer, shapes
from tests.planner.stages.test_assign import brute_force


@few_examples(60)
@given(chain=chains(), shape=shapes(), place=st.floats(0, 1))
def test_below_every_assignment_that_fits(chain, shape, place):
    found = [(time_s, size) for time_s, size, _, _ in brute_force(chain, shape, {})]
    if not found:
        return
    sizes = sorted(size for _, size in found)
    limit = sizes[int(place * (len(sizes) - 1))]
    fastest_s = min(time_s for time_s, size in found if size <= limit)
    for bound_s in (
        RelaxedBound(chain).bound_s(profile_schedule(shape), limit),
        SegmentAssigner(chain).limited_bound_s(shape, limit),
    ):
        assert bound_s <= fastest_s * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize(("schedule", "num_stages"), [("1f1b", 4), ("interleaved", 8), ("zero-bubble-v", 8)])
def test_as_slow_as_the_memory_makes_equal_layers(schedule, num_stages):
    shape = PipelineShape(num_actors=4, num_stages=num_stages, schedule=schedule, num_microbatches=32)
    fast, small = layer(weight_bytes=100), layer(time_s=5.0, weight_bytes=10)
    assigner = SegmentAssigner(equal_layers(64, fast, small, input_bytes=0))
    exact_s = {limit: assigner.assign(shape, memory_limit_bytes=limit)[0].time_s for limit in (1600, 900, 200)}
    for limit, time_s in exact_s.items():
        assert 0.9 * time_s <= assigner.limited_bound_s(shape, limit) <= time_s * (1 + 1e-9)
    assert exact_s[1600] < exact_s[900] < exact_s[200]
    assert assigner.limited_bound_s(shape, 150) == np.inf


def test_activations_in_flight_are_priced():
    shape = PipelineShape(num_actors=8, num_stages=8, schedule="1f1b", num_microbatches=64)
    kept, recomputed = layer(activation_bytes=10), layer(recompute_s=1.0, activation_bytes=1)
    assigner = SegmentAssigner(equal_layers(32, kept, recomputed))
    free_s = assigner.limited_bound_s(shape, 1000)
    # Four layers of the first stage keep eight microbatches each: 320 bytes, or 32.
    (tight,) = assigner.assign(shape, memory_limit_bytes=100)
    assert free_s * 1.05 < assigner.limited_bound_s(shape, 100) <= tight.time_s * (1 + 1e-9)


@few_examples(60)
@given(
    loads=st.lists(st.floats(0, 10), min_size=1, max_size=7),
    num_stages=st.integers(1, 4),
    data=st.data(),
)
def test_the_largest_stage(loads, num_stages, data):
    begins = [0, *(place for place in range(1, len(loads)) if data.draw(st.booleans()))]
    if num_stages > len(begins):
        return

    def largest(begins_of):
        bounds = [0, *begins_of, len(loads)]
        return max(sum(loads[start:stop]) for start, stop in itertools.pairwise(bounds))

    exact = min(largest(begins_of) for begins_of in itertools.combinations(begins[1:], num_stages - 1))
    found = bound_largest_load_s(np.asarray(loads), np.asarray(begins), num_stages)
    assert found <= exact * (1 + 1e-9)
    assert found >= exact - 0.01 * max(max(loads), 1e-9) * len(loads) or num_stages == 1
