"""The search in two passes: costs between two numbers of microbatches, and the answer beside a search of everything."""

import math
from typing import ClassVar

import jax
import optax
import pytest

from jaxquard.errors import PlanError
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.search import two_passes
from jaxquard.planner.search.deadline import Deadline
from jaxquard.planner.search.list_shapes import list_shapes
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.search.targets import find_plan_target
from jaxquard.planner.search.two_passes import TwoPassSearch, find_references
from jaxquard.planner.stages.assign import SegmentAssigner
from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
from jaxquard.planner.stages.configurations.search import search_configurations
from jaxquard.planner.tables.mesh_prices import MeshAxes
from jaxquard.planner.wishes import parse_wishes
from jaxquard.pricing import Failure, FailureReason
from jaxquard.pricing.roofline.roofline_pricer import RooflinePricer
from tests.planner.small_losses import mlp_args, mlp_loss
from tests.slow_but_for import slow_but_for

# What runs once a step.
STEP_TIMES = "step_s", "gradient_sum_s"


class FailingPricer(RooflinePricer):
    """Prices in closed form, but for the meshes on which nothing fits."""

    full_meshes: ClassVar[set[MeshAxes]] = set()
    asked: ClassVar[list[MeshAxes]] = []

    def price_all(self, programs, *, groups=None, on_progress=None, end_s=math.inf):
        axes = tuple(self.mesh.shape.items())
        self.asked.append(axes)
        if axes not in self.full_meshes:
            return super().price_all(programs, groups=groups, on_progress=on_progress, end_s=end_s)
        reason = FailureReason.OUT_OF_MEMORY
        return [Failure(name=program.name, reason=reason, message="too large") for program in programs]


@pytest.fixture
def failing_pricer(monkeypatch):
    monkeypatch.setattr(FailingPricer, "full_meshes", set())
    monkeypatch.setattr(FailingPricer, "asked", [])
    return FailingPricer


def make_search(cluster="h100-4", *, rows=64, pricer=None):
    params, batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), mlp_args(rows=rows))
    problem, _ = loss_problem(mlp_loss, optax.sgd(0.1), (params, batch))
    target = find_plan_target(cluster=cluster, devices=None, runtime="in_process")
    wishes = parse_wishes(None, None)
    make_pricer = None if pricer is None else lambda mesh: pricer(target.cluster, mesh)
    pricing = StepPricing(problem, target.cluster, wishes=wishes, make_pricer=make_pricer)
    max_stages = 1 + sum(boundary.can_begin for boundary in pricing.find_boundaries())
    shapes = list_shapes(problem, target, wishes, max_stages=max_stages, max_microbatch_size=None)
    return TwoPassSearch(pricing=pricing, memory_limit_bytes=target.memory_bytes), shapes


@pytest.mark.parametrize("first", slow_but_for(range(4), [0]))
def test_the_state_bounds_the_memory_of_what_is_found(first):
    """No configuration needs less than its share of the smallest state; every fourth one is tried."""
    search, shapes = make_search()
    references = search._price_meshes(shapes, Deadline())
    for shape in shapes[first::4]:
        costs = search._scaled_costs(shape, references[shape.axes])
        smallest = SegmentAssigner(costs).minimum_memory(shape.shape)
        if smallest is not None:
            assert search._smallest_bytes(shape, references[shape.axes]) <= max(smallest.peak_bytes) * (1 + 1e-9)


def test_strategies_are_ranked_with_the_fewest_microbatches():
    search, _ = make_search()
    pricing, axes = search.pricing, {"data": 2, "model": 2}
    fewest = tuple(axes.items()), 1
    few = pricing.find(axes, 1).priced()
    many = pricing.find_coarse(axes, 16, ranked_by=fewest).priced()
    assert many.num_strategies < few.num_strategies
    kept = few.strategies()
    assert all(set(strategies) <= set(kept[blocks]) for blocks, strategies in many.strategies().items())
    # The second pass has its own ranks, and the first takes those where they are known.
    own = pricing.find(axes, 16)
    assert own.priced().num_strategies > many.num_strategies
    assert pricing.find_coarse(axes, 16, ranked_by=fewest) is own


def some_of(shapes):
    """Returns the plainest configurations with 1 and with 4 microbatches."""
    return [
        shape
        for shape in shapes
        if shape.num_microbatches in (1, 4)
        if shape.recompute is Recompute.NONE and shape.storage == "as used"
        if shape.schedule in ("none", "1f1b")
    ]


def test_the_finest_pricer_is_asked_for_the_best_meshes_alone(failing_pricer):
    search, shapes = make_search()
    shapes = some_of(shapes)
    result = search.run(shapes)
    wanted = result.best
    fine_search, _ = make_search(pricer=failing_pricer)
    found = fine_search.run(shapes).best
    # Meshes on which every axis shards rows take as long.
    assert found.configuration in [one.configuration for one in result.finalists if one.time_s == wanted.time_s]
    # The same roofline, but of the whole program: its parts may fuse with each other.
    assert found.time_s == pytest.approx(wanted.time_s, rel=0.1)
    assert 0 < len(failing_pricer.asked) < len({(shape.axes, shape.num_microbatches) for shape in shapes})


def test_a_mesh_that_does_not_fit_by_the_finest_pricer_is_left_out(failing_pricer):
    search, shapes = make_search(pricer=failing_pricer)
    shapes = some_of(shapes)
    best = search.run(shapes).best
    failing_pricer.full_meshes.add(best.configuration.axes)
    search, _ = make_search(pricer=failing_pricer)
    other = search.run(shapes).best
    assert other.configuration.axes != best.configuration.axes
    assert other.time_s >= best.time_s
    assert any("too large" in reason for reason in search.pricing.failures.values())


def test_the_next_best_follow_where_none_of_the_best_fits(failing_pricer, monkeypatch):
    monkeypatch.setattr(two_passes, "_NUM_RANKED", 1)
    search, shapes = make_search(pricer=failing_pricer)
    # On one actor, so that the best is the best of its family too.
    shapes = [shape for shape in some_of(shapes) if shape.num_actors == 1 and len(shape.axes) == 1]
    best = search.run(shapes).best.configuration
    failing_pricer.full_meshes.add(best.axes)
    failing_pricer.asked.clear()
    search, _ = make_search(pricer=failing_pricer)
    other = search.run(shapes).best.configuration
    assert other.axes != best.axes
    assert failing_pricer.asked[0] == best.axes


def test_nothing_fits_by_the_finest_pricer(failing_pricer):
    search, shapes = make_search(pricer=failing_pricer)
    shapes = [shape for shape in some_of(shapes) if shape.num_microbatches == 1]
    failing_pricer.full_meshes.update(shape.axes for shape in shapes)
    with pytest.raises(PlanError, match=r"no configuration of the step has a price"):
        search.run(shapes)


def test_meshes_share_a_few_numbers_of_microbatches():
    shapes = [
        PlanConfiguration(
            num_actors=64 // (data * model),
            num_stages=64 // (data * model),
            axes=(("data", data), ("model", model)),
            microbatch_size=512 // count,
            num_microbatches=count,
            schedule="1f1b",
        )
        for data in (1, 2, 4, 8)
        for model in (1, 2, 4, 8)
        for count in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
        if 64 // (data * model) <= count <= 512 // data
    ]
    found = find_references(shapes, 512)
    assert set().union(*found.values()) <= {1, 8, 64, 512}
    for axes, (few, many) in found.items():
        own = [shape.num_microbatches for shape in shapes if shape.axes == axes]
        assert few <= min(own)
        assert 512 // many % (axes[0][1] * axes[1][1]) == 0
    (fixed,) = find_references([shapes[-1]], 512).values()
    assert fixed == (shapes[-1].num_microbatches,)


def test_meshes_share_what_they_read():
    """Costs are the same, whichever meshes were priced before."""
    search, _ = make_search()
    axes = {"data": 2, "model": 2}
    alone = [search.pricing.costs(axes, 4, storage=storage, recompute=Recompute.NONE) for storage in Storage]
    search, _ = make_search()
    for before in ({"model": 2}, {"model": 4}, {"data": 2}, {"data": 4}):
        for storage in Storage:
            search.pricing.costs(before, 4, storage=storage, recompute=Recompute.NONE)
    for storage, wanted in zip(Storage, alone, strict=True):
        found = search.pricing.costs(axes, 4, storage=storage, recompute=Recompute.NONE)
        assert found.strategies == wanted.strategies
        assert [one.strategies for one in found.segments] == [one.strategies for one in wanted.segments]


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


def test_a_small_batch_is_priced_with_a_number_of_microbatches_of_its_own():
    """Costs that are scaled from one microbatch alone make any number of them take as long."""
    mesh = (("model", 4),)
    shapes = [
        PlanConfiguration(
            num_actors=1, num_stages=1, axes=mesh, microbatch_size=16 // count, num_microbatches=count, schedule="none"
        )
        for count in (1, 2, 4, 8)
    ]
    assert find_references(shapes, 16) == {mesh: (1, 4)}
    assert find_references(shapes[:2], 2) == {mesh: (1, 2)}
