"""Costs of segments: from any pricer, shared by equal layers, pruned and steered."""

import dataclasses

import numpy as np
import pytest

from jaxquard.errors import PlanError
from jaxquard.intraop.plan.segment_prices import make_chain
from jaxquard.intraop.segments.analysis import analyse_step
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.planner.prices.price_strategies import price_strategies
from jaxquard.planner.prices.prune import PruneSettings, prune_strategies
from jaxquard.planner.record.plan import Recompute
from jaxquard.pricing import Price
from tests.intraop.fake_pricer import PROVENANCE, FakePricer
from tests.intraop.steps import zoo_types
from tests.intraop.zoo_analyses import analyse_model
from tests.planner.prices.small_steps import analyse_mlp, coarse_pricer, priced_mlp, priced_model


class SplitPricer(FakePricer):
    """Prices all programs at 8 ms, 2 of them communication."""

    def _price(self, name):
        return Price(
            time_s=8e-3, compute_s=6e-3, communication_s=2e-3, peak_bytes=1, spread=None, provenance=PROVENANCE
        )


def whole_s(cost) -> float:
    return cost.forward_s + cost.input_gradient_s + cost.weight_gradient_s + cost.step_s


def test_equal_layers_are_one_object():
    costs = priced_model("gpt-tiny").costs()
    kinds = [segment.kind for segment in priced_model("gpt-tiny").analysis.segments]
    alike = [number for number in range(2, len(kinds) - 2) if kinds[number] == kinds[number - 1] == kinds[number + 1]]
    assert len(alike) > 1
    assert len({id(costs.segments[number]) for number in alike}) == 1
    assert all(
        (one is other) == (one.kind == other.kind and one.input_bytes == other.input_bytes)
        for one in costs.segments
        for other in costs.segments
    )


def test_a_chain_of_segments_has_reshards_between_its_layouts():
    priced = priced_model("gpt-tiny")
    costs = priced.costs()
    assert costs.segments[0].reshards_s is None
    for before, segment, chained in zip(
        costs.segments, costs.segments[1:], make_chain(priced.prices)[1:], strict=False
    ):
        assert segment.reshards_s is not None
        np.testing.assert_array_equal(segment.reshards_s, chained.reshards_s)
        assert segment.reshards_s.shape[0] == 1 + max(cost.exit for cost in before.strategies)
        assert segment.reshards_s.shape[1] == 1 + max(cost.entry for cost in segment.strategies)
        assert segment.reshards_s.max() > 0


def test_the_parts_of_a_coarse_price_are_all_of_it():
    priced = priced_mlp()
    (segment,), (kind,) = priced.costs().segments, priced.prices.kinds.values()
    for cost, price in zip(segment.strategies, kind.prices, strict=True):
        assert whole_s(cost) == pytest.approx(price.time_s)
        assert 0 <= cost.communication_s + cost.gradient_sum_s <= price.time_s


def test_another_price_is_split_in_the_proportions_of_the_coarse_one():
    analysis = analyse_mlp()
    coarse = priced_mlp().costs().segments[0].strategies
    fine = price_strategies(
        analysis,
        coarse=coarse_pricer(analysis),
        pricer=FakePricer(),
        prune=PruneSettings(slow_factor=100, max_strategies=100),
    )
    for cost, other in zip(fine.costs().segments[0].strategies, coarse, strict=True):
        assert cost.forward_s / whole_s(cost) == pytest.approx(other.forward_s / whole_s(other))
        assert cost.activation_bytes == other.activation_bytes
    rows = fine.costs().places(fine.recipes["data parallel"])
    assert rows is not None
    assert whole_s(fine.costs().segments[0].strategies[rows[0]]) == pytest.approx(6e-3)
    assert fine.provenance == "made up on 8 x thought"


def test_measured_collectives_are_scaled_by_themselves():
    analysis = analyse_mlp()
    priced = price_strategies(analysis, coarse=coarse_pricer(analysis), pricer=SplitPricer())
    for cost in priced.costs().segments[0].strategies:
        assert cost.communication_s + cost.gradient_sum_s == pytest.approx(2e-3)
        assert whole_s(cost) == pytest.approx(8e-3)


def test_sums_of_gradients_over_the_batch_are_once_a_step():
    costs = priced_mlp().costs()
    rows, tensor = (
        costs.segments[0].strategies[costs.strategies[0].index(strategy)]
        for strategy in ((("rows",), ("rows",)), (("columns",), ("contracted",)))
    )
    assert rows.gradient_sum_s > 0
    assert tensor.gradient_sum_s == 0
    assert rows.step_s > rows.gradient_sum_s
    zero = priced_mlp().costs(storage=Storage.ZERO_1).segments[0].strategies[0]
    assert zero.step_s != rows.step_s
    assert dataclasses.replace(zero, step_s=0, gradient_sum_s=0, optimizer_bytes=0) == dataclasses.replace(
        rows, step_s=0, gradient_sum_s=0, optimizer_bytes=0
    )


def test_the_first_segment_has_no_input_gradient_and_others_have():
    costs = priced_model("gpt-tiny").costs()
    first, *others = costs.segments
    assert all(cost.input_gradient_s == 0 for cost in first.strategies)
    assert all(cost.input_gradient_s > 0 for segment in others for cost in segment.strategies)


def test_recomputation_adds_time_and_takes_bytes():
    priced = priced_model("gpt-tiny")
    none, selective, full = (priced.costs(recompute=recompute) for recompute in Recompute)
    for segments in zip(none.segments, selective.segments, full.segments, strict=True):
        for first, second, third in zip(*(segment.strategies for segment in segments), strict=True):
            assert first.recompute_s == 0
            assert second.recompute_s <= third.recompute_s <= third.forward_s * (1 + 1e-9)
            assert first.activation_bytes >= second.activation_bytes >= third.activation_bytes
            assert first.forward_s == third.forward_s


def test_assignments_go_there_and_back():
    priced = priced_model("gpt-tiny")
    costs = priced.costs()
    for assignment in priced.recipes.values():
        places = costs.places(assignment)
        assert places is not None
        assert costs.assignment(places) == {block: tuple(names) for block, names in assignment.items()}
    assert costs.places(dict.fromkeys(assignment, ("2d rows",))) is None


def test_stages_begin_where_they_may():
    priced = priced_model("gpt-tiny")
    costs = priced.costs(can_begin_stage={2: False})
    assert [segment.can_begin_stage for segment in costs.segments] == [
        number != 2 for number in range(len(costs.segments))
    ]


def test_values_that_enter_are_those_of_one_device():
    costs = priced_model("gpt-tiny").costs()
    batch, length, dim = 8, 32, 64
    whole = 4 * batch * length * dim
    assert costs.segments[0].input_bytes == 0
    assert all(segment.input_bytes in (whole, whole // 8) for segment in costs.segments[1:])


def test_wishes_prune_before_anything_is_priced():
    analysis = analyse_model("gpt-tiny", num_layers=6)
    pricer = FakePricer()
    wanted = analysis.segments[2].blocks[0]
    priced = price_strategies(
        analysis,
        coarse=coarse_pricer(analysis),
        pricer=pricer,
        allowed=lambda block, names: names == ("columns",) if block == wanted else names != ("contracted",),
    )
    assert not any("contracted" in name for name in pricer.names)
    costs = priced.costs()
    assert {strategy[0] for strategy in costs.strategies[2]} == {("columns",)}
    assert {strategy[0] for strategy in costs.strategies[1]} > {("columns",)}


def test_wishes_that_leave_nothing_are_refused_with_the_line():
    analysis = analyse_mlp()
    with pytest.raises(PlanError, match=r"fix=\{'a': 'batch 7'\} leave nothing for the product at \w+, small_steps.py"):
        price_strategies(
            analysis,
            coarse=coarse_pricer(analysis),
            allowed=lambda block, names: block != 0,
            wishes="fix={'a': 'batch 7'}",
        )


def test_a_costly_pricer_is_asked_for_few():
    analysis = analyse_model("gpt-tiny", num_layers=6)
    pricer = FakePricer()
    priced = price_strategies(
        analysis, coarse=coarse_pricer(analysis), pricer=pricer, prune=PruneSettings(max_strategies=3)
    )
    asked = [name for name in pricer.names if name.startswith("segment")]
    assert len(asked) == priced.num_strategies - priced.num_pruned
    assert len(asked) <= len(priced.prices.kinds) * (3 + len(priced.recipes))
    costs = priced.costs()
    assert all(costs.places(assignment) is not None for assignment in priced.recipes.values())


def test_pruning_keeps_the_fastest_the_smallest_and_recipes():
    names = {name: ((name,),) for name in "abcdef"}
    coarse = {
        names["a"]: (1.0, 100),
        names["b"]: (1.1, 120),
        names["c"]: (1.5, 50),
        names["d"]: (9.0, 10),
        names["e"]: (1.9, 200),
        names["f"]: (8.0, 300),
    }
    kept = prune_strategies(coarse, recipes=[names["f"]], settings=PruneSettings(slow_factor=2, max_strategies=3))
    assert kept == tuple(names[name] for name in "acdf")
    assert prune_strategies(coarse, recipes=[], settings=PruneSettings()) == tuple(names[name] for name in "abcde")


def test_pruning_keeps_the_fastest_of_each_layout_that_neighbours_see():
    strategies = {name: tuple((letter,) for letter in name) for name in ("aaa", "aba", "aca", "bab", "bbb")}
    coarse = {strategy: (1 + 0.1 * place, 100) for place, strategy in enumerate(strategies.values())}
    kept = prune_strategies(coarse, recipes=[], settings=PruneSettings(max_strategies=3))
    assert kept == tuple(strategies[name] for name in ("aaa", "aba", "bab"))


def test_failures_are_left_out():
    analysis = analyse_mlp()
    priced = price_strategies(
        analysis,
        coarse=coarse_pricer(analysis),
        pricer=FakePricer(fails=lambda name: name.endswith("rows rows")),
    )
    assert [failure.name for failure in priced.failures] == ["segment 0: rows rows"]
    assert (("rows",), ("rows",)) not in priced.costs().strategies[0]


def test_on_one_device_there_is_one_strategy():
    priced = priced_mlp((("x", 1),))
    assert priced.num_strategies == 1
    assert all(priced.costs().places(assignment) == (0,) for assignment in priced.recipes.values())
    assert priced_mlp((("x", 1), ("y", 8))).num_strategies == priced_mlp((("y", 8),)).num_strategies


@pytest.mark.parametrize(
    ("model", "options"),
    [pytest.param("moe-tiny", {}, marks=pytest.mark.slow), ("llama-tiny", {"remat": True})],
)
def test_other_models_have_costs(model, options):
    analysis = analyse_step(trace_step(*zoo_types(model, num_layers=2, **options)), axes={"data": 2, "model": 4})
    priced = price_strategies(analysis, coarse=coarse_pricer(analysis), batch_axis="data")
    costs = priced.costs(storage=Storage.ZERO_1)
    assert all(segment.strategies for segment in costs.segments)
    assert all(
        cost.forward_s > 0 and cost.weight_gradient_s >= 0 for segment in costs.segments for cost in segment.strategies
    )
    assert costs.places(priced.recipes["data parallel"]) is not None
