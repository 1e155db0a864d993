"""Estimates as if segments could be divided: never without an assignment that fits, and close for equal layers."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jaxquard.planner.stages.assign import SegmentAssigner
from jaxquard.planner.stages.segment_costs import PipelineShape
from tests.few_examples import few_examples

from .generate_chains import ONE_STAGE_EACH, chains, equal_layers, layer, shapes
from .test_assign import brute_force


@few_examples(60)
@given(chain=chains(), shape=shapes(), place=st.floats(0, 1))
def test_what_fits_has_an_estimate(chain, shape, place):
    assume(shape.schedule in (*ONE_STAGE_EACH, "none"))
    sizes = sorted(size for _, size, _, _ in brute_force(chain, shape, {}))
    if sizes:
        limit = sizes[int(place * (len(sizes) - 1))]
        assert SegmentAssigner(chain).estimate_s(shape, limit) < np.inf


@few_examples(60)
@given(chain=chains(), shape=shapes())
def test_without_a_limit_no_assignment_is_faster(chain, shape):
    times_s = [time_s for time_s, _, _, _ in brute_force(chain, shape, {})]
    assert SegmentAssigner(chain).estimate_s(shape, None) <= min(times_s, default=np.inf) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize(("schedule", "num_stages"), [("1f1b", 4), ("interleaved", 8), ("zero-bubble-v", 8)])
def test_as_slow_as_the_memory_makes_equal_layers(schedule, num_stages):
    shape = PipelineShape(num_actors=4, num_stages=num_stages, schedule=schedule, num_microbatches=32)
    fast, small = layer(weight_bytes=100), layer(time_s=5.0, weight_bytes=10)
    assigner = SegmentAssigner(equal_layers(64, fast, small, input_bytes=0))
    exact_s = {limit: assigner.assign(shape, memory_limit_bytes=limit)[0].time_s for limit in (1600, 900, 200)}
    for limit, time_s in exact_s.items():
        assert 0.9 * time_s <= assigner.estimate_s(shape, limit) <= time_s * (1 + 1e-9)
    assert exact_s[1600] < exact_s[900] < exact_s[200]
    assert assigner.estimate_s(shape, 120) == np.inf


def test_activations_in_flight_are_priced():
    shape = PipelineShape(num_actors=8, num_stages=8, schedule="1f1b", num_microbatches=64)
    kept, recomputed = layer(activation_bytes=10), layer(recompute_s=1.0, activation_bytes=1)
    assigner = SegmentAssigner(equal_layers(32, kept, recomputed))
    # Four layers of the first stage keep eight microbatches each: 320 bytes, or 32.
    (tight,) = assigner.assign(shape, memory_limit_bytes=100)
    assert assigner.estimate_s(shape, 1000) * 1.05 < assigner.estimate_s(shape, 100) <= tight.time_s * (1 + 1e-9)
