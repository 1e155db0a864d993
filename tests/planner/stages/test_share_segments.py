"""Tests of equal segments that are made one."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given

from jaxquard.planner.stages.assign import assign_segments
from jaxquard.planner.stages.segment_costs import content_of, share_equal
from tests.planner.stages.generate_chains import chains, shapes


def with_own_kinds(chain):
    """Returns a chain whose segments share nothing."""
    return [
        dataclasses.replace(
            segment, kind=place, reshards_s=None if segment.reshards_s is None else segment.reshards_s.copy()
        )
        for place, segment in enumerate(chain)
    ]


@given(chain=chains())
def test_equal_segments_are_one_and_numbers_stay(chain):
    shared = share_equal(with_own_kinds(chain))
    assert content_of(shared) == content_of(chain)
    for before, after in zip(chain, shared, strict=True):
        assert after.costs == before.costs
        assert (after.input_bytes, after.can_begin_stage) == (before.input_bytes, before.can_begin_stage)
        assert (after.reshards_s is None) == (before.reshards_s is None)
        np.testing.assert_array_equal(after.reshards_s, before.reshards_s)
    for place, one in enumerate(shared):
        for other in shared[:place]:
            assert (one.kind == other.kind) == (one.costs == other.costs)
            has_same = np.array_equal(one.reshards_s, other.reshards_s) and one.input_bytes == other.input_bytes
            is_same = one.kind == other.kind and has_same and one.can_begin_stage == other.can_begin_stage
            assert (one is other) == is_same


@given(chain=chains(), shape=shapes())
def test_equal_segments_as_one_are_assigned_the_same(chain, shape):
    found = assign_segments(share_equal(with_own_kinds(chain)), shape, memory_limit_bytes=60)
    wanted = assign_segments(with_own_kinds(chain), shape, memory_limit_bytes=60)
    assert [one.time_s for one in found] == pytest.approx([one.time_s for one in wanted])
