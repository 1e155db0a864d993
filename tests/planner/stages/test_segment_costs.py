"""Costs of strategies as arrays, against the costs that they were made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.planner.stages.segment_costs import CostTable, SegmentCosts

from .generate_chains import layer, segment_costs


@given(st.lists(segment_costs(), max_size=4))
def test_costs_come_back(costs):
    found = CostTable.of(costs)
    assert list(found) == costs
    assert found.microbatch_s.tolist() == [cost.microbatch_s for cost in costs]
    assert found.fixed_bytes.tolist() == [cost.fixed_bytes for cost in costs]
    for name in ("step_s", "working_bytes", "exit"):
        assert found.column(name).tolist() == [getattr(cost, name) for cost in costs]
    assert list(found[1:]) == costs[1:]


def test_large_counts_are_exact():
    cost = layer(weight_bytes=2**53 + 1)
    assert CostTable.of([cost])[0] == cost


def test_any_sequence_becomes_arrays():
    costs = (layer(time_s=1.0), layer(time_s=2.0))
    segment = SegmentCosts(kind=0, strategies=costs)
    assert segment.costs is segment.strategies
    assert segment.strategies == CostTable.of(costs)
    assert segment.strategies != CostTable.of(costs[:1])
    assert segment.strategies != CostTable.of(costs[::-1])
    assert SegmentCosts(kind=1, strategies=segment.strategies).costs is segment.costs
    with pytest.raises(IndexError):
        segment.strategies[2]
