"""Tests of costs with numbers of microbatches that were not priced."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.prices.step_costs import StepCosts
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.search.costs_by_rows import CostsByRows, find_serving, mix_costs
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.search.targets import find_plan_target
from jaxquard.planner.stages.segment_costs import CostTable, SegmentCosts
from jaxquard.planner.wishes import parse_wishes
from tests.planner.small_losses import mlp_args, mlp_loss
from tests.planner.stages.generate_chains import segment_costs

# What runs once a step.
STEP_TIMES = "step_s", "gradient_sum_s"


def find_costs(*counts, storage=Storage.AS_USED, recompute=Recompute.NONE):
    """Returns the costs of a small step over two devices, with each number of microbatches."""
    params, batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), mlp_args(rows=64))
    problem, _ = loss_problem(mlp_loss, optax.sgd(0.1), (params, batch))
    target = find_plan_target(cluster="h100-4", devices=None, runtime="in_process")
    pricing = StepPricing(problem, target.cluster, wishes=parse_wishes(None, None), make_pricer=None)
    return [pricing.costs({"data": 2}, count, storage=storage, recompute=recompute) for count in counts]


def fastest_s(segments):
    return sum(min(cost.microbatch_s for cost in segment.strategies) for segment in segments)


def test_costs_between_two_numbers_of_microbatches():
    few, some, many = find_costs(1, 4, 16)
    scaled = CostsByRows((1, 16), (few, many))
    for count, wanted in ((1, few), (16, many)):
        found = scaled.with_microbatches(count)
        assert fastest_s(found) == pytest.approx(fastest_s(wanted.segments), rel=0.05)
    assert fastest_s(scaled.with_microbatches(4)) == pytest.approx(fastest_s(some.segments), rel=0.25)


def test_the_mean_of_a_cost_with_itself_is_that_cost():
    (costs,) = find_costs(4, storage=Storage.ZERO_1, recompute=Recompute.FULL)
    mixed = CostsByRows((4, 16), (costs, costs)).with_microbatches(4)
    assert [one.strategies for one in mixed] == [one.strategies for one in costs.segments]


def mixed_by_hand(cost, other, weights):
    """A cost between two, number by number."""
    numbers = {}
    for name in (one.name for one in dataclasses.fields(cost)):
        numbers[name] = getattr(cost, name)
        if name in ("activation_bytes", "working_bytes") or (name.endswith("_s") and name not in STEP_TIMES):
            mixed = max(0.0, weights[0] * getattr(cost, name) + weights[1] * getattr(other, name))
            numbers[name] = round(mixed) if name.endswith("bytes") else mixed
    return type(cost)(**numbers)


@given(
    st.lists(segment_costs(), min_size=1, max_size=4),
    st.lists(segment_costs(), min_size=1, max_size=4),
    st.sampled_from([(1.0, 0.0), (0.25, 0.75), (1.5, -0.5), (0.1, 0.0)]),
    st.data(),
)
def test_costs_are_mixed_number_by_number(first, last, weights, data):
    pairs = data.draw(
        st.lists(st.tuples(st.integers(0, len(first) - 1), st.integers(0, len(last) - 1)), min_size=1, max_size=5)
    )
    places = np.asarray(pairs).T
    found = mix_costs(CostTable.of(first), places[0], CostTable.of(last), places[1], weights)
    assert list(found) == [mixed_by_hand(first[one], last[other], weights) for one, other in pairs]


@st.composite
def costs_of_two(draw):
    """Costs with two numbers of microbatches: kinds of segments that have some strategies in common, or none."""
    names = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)
    kinds = [[{one: draw(segment_costs()) for one in draw(names)} for _ in range(2)] for _ in range(draw(st.just(2)))]
    order = draw(st.lists(st.integers(0, 1), min_size=1, max_size=5))
    found = []
    for end in range(2):
        made = [
            SegmentCosts(kind=kind, strategies=tuple(both[end].values()), reshards_s=np.ones((2, 2)), input_bytes=8)
            for kind, both in enumerate(kinds)
        ]
        strategies = [tuple(((name,),) for name in both[end]) for both in kinds]
        found.append(
            StepCosts(
                segments=tuple(made[kind] for kind in order),
                strategies=tuple(strategies[kind] for kind in order),
                blocks=tuple((kind,) for kind in order),
                axes={"data": 2},
            )
        )
    return found


@given(costs=costs_of_two(), count=st.sampled_from([2, 4, 8, 16]), left_out=st.sampled_from(["", "a", "ab"]))
def test_a_chain_is_mixed_as_its_segments_are(costs, count, left_out):
    first, last = costs
    found = CostsByRows((2, 16), costs).with_microbatches(
        count, fits=lambda blocks, strategy: blocks[0] == 0 or strategy[0][0] not in left_out
    )
    weight = (1 / count - 1 / 16) / (1 / 2 - 1 / 16)
    for place, segment in enumerate(found):
        ones = dict(zip(first.strategies[place], first.segments[place].strategies, strict=True))
        others = dict(zip(last.strategies[place], last.segments[place].strategies, strict=True))
        fitting = [one for one in ones if first.blocks[place] == (0,) or one[0][0] not in left_out] or [*ones]
        pairs = [(ones[one], others[one]) for one in fitting if one in others]
        pairs = pairs or [(one, one) for one in ones.values()]
        assert list(segment.strategies) == [mixed_by_hand(one, other, (weight, 1 - weight)) for one, other in pairs]
        np.testing.assert_array_equal(segment.reshards_s, np.full((2, 2), 2 / count))
        assert segment.input_bytes == round(8 * 2 / count)


def test_other_segments_with_other_microbatches():
    """With one block more in a segment, costs come from the nearer number of microbatches alone."""
    few, many = find_costs(1, 16)
    joined = ((*many.blocks[0], *many.blocks[1]), *many.blocks[2:])
    assert find_serving(2, (1, 16), (few.blocks, many.blocks)) == (1, 16)
    assert find_serving(2, (1, 16), (few.blocks, joined)) == [1]
    assert find_serving(16, (1, 16), (few.blocks, joined)) == [16]
    half = CostsByRows([1], [few]).with_microbatches(2)
    assert fastest_s(half) == pytest.approx(fastest_s(few.segments) / 2)
