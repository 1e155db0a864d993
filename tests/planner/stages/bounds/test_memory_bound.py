"""Bounds on the memory of a chain under a schedule: below every assignment, and close to equal shares."""

import numpy as np
import pytest
from hypothesis import given

from jaxquard.planner.stages.bounds.memory_bound import MemoryBound
from jaxquard.planner.stages.schedule_profile import profile_schedule
from jaxquard.planner.stages.segment_costs import PipelineShape
from tests.few_examples import few_examples
from tests.planner.stages.generate_chains import chains, equal_layers, layer, shapes
from tests.planner.stages.test_assign import brute_force


def may_fit(chain, shape, limit, max_load_s=np.inf):
    loads_s = np.asarray(
        [
            min((shape.num_microbatches - 1) * cost.microbatch_s + cost.step_s for cost in segment.strategies)
            for segment in chain
        ]
    )
    return MemoryBound(chain).may_fit(profile_schedule(shape), limit, loads_s=loads_s, max_load_s=max_load_s)


@few_examples(60)
@given(chain=chains(), shape=shapes())
def test_what_fits_may_fit(chain, shape):
    sizes = [size for _, size, _, _ in brute_force(chain, shape, {})]
    if sizes:
        assert may_fit(chain, shape, min(sizes))


@pytest.mark.parametrize(("schedule", "num_stages"), [("1f1b", 4), ("interleaved", 8)])
def test_equal_layers_that_do_not_fit(schedule, num_stages):
    shape = PipelineShape(num_actors=4, num_stages=num_stages, schedule=schedule, num_microbatches=16)
    chain = equal_layers(16, layer(weight_bytes=10, activation_bytes=4, working_bytes=30))
    # The fixed bytes and the working ones alone are 70 of each actor.
    assert not may_fit(chain, shape, 80)
    assert may_fit(chain, shape, 400)
    # As fast as equal shares are, the first actor keeps the activations of four microbatches.
    equal_s = 4 * (15 * 3.0)
    assert may_fit(chain, shape, 120)
    assert not may_fit(chain, shape, 100, max_load_s=equal_s * 4 / num_stages)
