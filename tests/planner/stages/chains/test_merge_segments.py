"""Merged segments: shorter chains whose assignments are those of the longer ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.planner.stages.assign import SegmentAssigner
from jaxquard.planner.stages.chains.merge_segments import find_cheap_begins, merge_segments
from jaxquard.planner.stages.play_assignment import play_assignment
from jaxquard.planner.stages.segment_costs import PipelineShape, SegmentCosts
from tests.few_examples import few_examples
from tests.planner.stages.generate_chains import chains, layer, shapes


@few_examples(60)
@given(chain=chains(max_segments=6), shape=shapes(max_actors=2))
def test_assignments_of_the_merged_chain_are_those_of_the_chain(chain, shape):
    begins = [0, *(place for place in range(1, len(chain)) if chain[place].can_begin_stage)]
    merged = merge_segments(chain, begins)
    ours = SegmentAssigner(merged.segments).assign(shape)
    exact = SegmentAssigner(chain).assign(shape)
    assert len(ours) == len(exact)
    for short, long in zip(ours, exact, strict=True):
        assert short.time_s == pytest.approx(long.time_s)
        expanded = merged.expand(short)
        played = play_assignment(chain, shape, expanded)
        assert played.time_s == pytest.approx(play_assignment(merged.segments, shape, short).time_s)
        assert played.peak_bytes == play_assignment(merged.segments, shape, short).peak_bytes


@few_examples(60)
@given(chain=chains(max_segments=6), shape=shapes(max_actors=2), share=st.floats(0, 1))
def test_assignments_of_the_merged_chain_fit_the_memory(chain, shape, share):
    """The merged chain has some of the strategies: under a limit it is never faster, and fits where it says so."""
    begins = [0, *(place for place in range(1, len(chain)) if chain[place].can_begin_stage)]
    merged = merge_segments(chain, begins)
    short, long = SegmentAssigner(merged.segments, is_merged=True), SegmentAssigner(chain)
    free, smallest = long.assign(shape), long.minimum_memory(shape)
    if not free or smallest is None:
        return
    smallest_bytes = smallest.size_bytes
    limit_bytes = smallest_bytes + int(share * max(0, max(free[0].peak_bytes) - smallest_bytes))
    exact = long.assign(shape, memory_limit_bytes=limit_bytes)
    for found in short.assign(shape, memory_limit_bytes=limit_bytes):
        assert found.time_s >= exact[0].time_s * (1 - 1e-9)
        assert max(merged.expand(found).peak_bytes) <= limit_bytes


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
    assert find_cheap_begins(chain, factor=2, reach=2) == tuple(range(0, 96, 2))
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
