"""The search in two passes: costs between two numbers of microbatches, and the answer beside a search of everything."""

import dataclasses

import jax
import optax
import pytest

from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.search.list_shapes import list_shapes
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.search.targets import find_plan_target
from jaxquard.planner.search.two_passes import TwoPassSearch, _between
from jaxquard.planner.stages.search import search_configurations
from jaxquard.planner.wishes import parse_wishes
from tests.planner.small_losses import mlp_args, mlp_loss


def make_search(cluster="h100-4", *, rows=64):
    params, batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), mlp_args(rows=rows))
    problem, _ = loss_problem(mlp_loss, optax.sgd(0.1), (params, batch))
    target = find_plan_target(cluster=cluster, devices=None, runtime="in_process")
    wishes = parse_wishes(None, None)
    pricing = StepPricing(problem, target.cluster, wishes=wishes)
    max_stages = 1 + sum(boundary.can_begin for boundary in pricing.find_boundaries())
    shapes = list_shapes(problem, target, wishes, max_stages=max_stages, max_microbatch_size=None)
    return TwoPassSearch(pricing=pricing, memory_limit_bytes=target.memory_bytes), shapes


def test_costs_between_two_numbers_of_microbatches():
    search, _ = make_search()
    axes = {"data": 2}
    few, some, many = (
        search.pricing.costs(axes, count, storage=Storage.AS_USED, recompute=Recompute.NONE) for count in (1, 4, 16)
    )
    for count, wanted in ((1, few), (16, many)):
        assert fastest_s(_between(count, (1, 16), (few, many))) == pytest.approx(fastest_s(wanted.segments), rel=0.05)
    assert fastest_s(_between(4, (1, 16), (few, many))) == pytest.approx(fastest_s(some.segments), rel=0.25)


def test_other_segments_with_other_microbatches():
    """With one block more in a segment, costs come from the nearer number of microbatches alone."""
    search, _ = make_search()
    few, many = (
        search.pricing.costs({"data": 2}, count, storage=Storage.AS_USED, recompute=Recompute.NONE) for count in (1, 16)
    )
    joined = ((*many.blocks[0], *many.blocks[1]), *many.blocks[2:])
    other = dataclasses.replace(many, segments=many.segments[1:], strategies=many.strategies[1:], blocks=joined)
    assert fastest_s(_between(2, (1, 16), (few, other))) == pytest.approx(fastest_s(few.segments) / 2)
    assert fastest_s(_between(16, (1, 16), (few, other))) == pytest.approx(fastest_s(other.segments))


def test_strategies_are_ranked_with_the_fewest_microbatches():
    search, _ = make_search()
    pricing, axes = search.pricing, {"data": 2, "model": 2}
    few = pricing.find(axes, 1).priced
    many = pricing.find(axes, 16, ranked_by=1).priced
    assert many.num_strategies < few.num_strategies
    kept = few.strategies()
    assert all(set(strategies) <= set(kept[blocks]) for blocks, strategies in many.strategies().items())
    # The second pass has its own ranks, and the first takes those where they are known.
    own = pricing.find(axes, 16)
    assert own.priced.num_strategies > many.num_strategies
    assert pricing.find(axes, 16, ranked_by=1) is own


def fastest_s(segments):
    return sum(min(cost.microbatch_s for cost in segment.strategies) for segment in segments)


@pytest.mark.slow
def test_as_fast_as_a_search_of_everything():
    search, shapes = make_search()
    found = search.run(shapes).best
    wanted = search_configurations(
        shapes, search.find_costs, memory_limit_bytes=search.memory_limit_bytes, links=search.links, num_finalists=3
    ).best
    assert found.time_s <= 1.05 * wanted.time_s
