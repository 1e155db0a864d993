"""The whole search under made-up prices, and what it refuses."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan import search_sharding as search_module
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.pricing import MeasuredPricer
from tests.intraop.fake_pricer import TIMES_MS, FakePricer
from tests.intraop.patterns import PATTERNS
from tests.intraop.same_numbers import check_same
from tests.intraop.steps import analyse, inputs, mesh_of, sgd, weights, zoo_types


@pytest.fixture
def mesh():
    return mesh_of(x=8)


def search(step, args, mesh, **more):
    return search_sharding(step, args, mesh=mesh, **({"pricer": FakePricer()} | more))


class TestAnswer:
    def test_every_block_has_the_cheapest_choice_where_resharding_is_free(self, mesh):
        found = search(*zoo_types("gpt-tiny"), mesh)
        assert found.choices == (("columns",),) * 10
        assert found.time_s == pytest.approx(10 * 2e-3)
        assert found.size_bytes == 10 * 20

    def test_experts_have_a_choice_of_their_own(self, mesh):
        found = search(*zoo_types("moe-tiny"), mesh)
        assert [names for names in found.choices if names != ("columns",)] == [("batch 0",)] * 2

    @pytest.mark.quick
    @pytest.mark.parametrize("limit", [90, 75, 60, 47, 30])
    def test_a_memory_limit_is_kept_at_the_minimum_cost(self, mesh, limit):
        """A step down in memory saves 10 bytes and costs a millisecond, in any block."""
        prices = FakePricer(
            times_ms={"rows": 1, "columns": 2, "contracted": 3, "scattered": 9},
            sizes={"rows": 30, "columns": 20, "contracted": 10, "scattered": 1},
        )
        found = search(*PATTERNS["mlp"](), mesh, pricer=prices, memory_limit_bytes=limit)
        num_steps = -((limit - 3 * 30) // 10)
        assert found.size_bytes <= limit
        assert found.time_s == pytest.approx((3 + num_steps) * 1e-3)

    def test_the_frontier_has_every_trade(self, mesh):
        prices = FakePricer(
            times_ms={"rows": 1, "columns": 2, "contracted": 3, "scattered": 9},
            sizes={"rows": 30, "columns": 20, "contracted": 10, "scattered": 1},
        )
        found = search(*PATTERNS["mlp"](), mesh, pricer=prices)
        assert [size for _, size in found.frontier] == [90, 80, 70, 60, 50, 40, 30]

    def test_the_same_prices_give_the_same_plan(self, mesh):
        step, args = zoo_types("llama-tiny")
        assert search(step, args, mesh) == search(step, args, mesh)

    def test_baselines_are_priced_alike(self, mesh):
        found = search(*PATTERNS["mlp"](), mesh)
        baselines = {baseline.name: baseline for baseline in found.baselines}
        assert baselines["data parallel"].time_s == pytest.approx(9e-3)
        assert baselines["data parallel"].size_bytes == 90
        assert all(baseline.time_s >= found.time_s - 1e-12 for baseline in found.baselines)

    @pytest.mark.slow
    def test_programs_are_those_of_unique_segments(self, mesh):
        whole, few, many = FakePricer(), FakePricer(), FakePricer()
        plans = [
            search(*zoo_types("gpt-tiny", num_layers=count), mesh, pricer=pricer)
            for count, pricer in ((2, whole), (5, few), (10, many))
        ]
        assert len({plan.num_programs for plan in plans}) == 1
        assert len(few.names) == len(many.names), "pairs of neighbours are as many in a deeper model"
        assert [name for name in whole.names if name.startswith("segment 0 and 1 and 2 and 3:")]
        assert not [name for name in many.names if " and 2" in name and name.startswith("segment 0")]
        alone = {name for name in few.names if re.match(r"segment \d+:", name)}
        assert len([name for name in alone if "zero" not in name and "scattered" not in name]) == 3 + 81 + 3

    @pytest.mark.slow
    def test_of_96_layers_as_many_as_of_5(self, mesh):
        """Of 4 there are as many segments and reshards, and fewer after them: up to there plans are priced whole."""

        def priced(num_layers):
            pricer = FakePricer()
            plan = search(*zoo_types("gpt-tiny", num_layers=num_layers), mesh, pricer=pricer)
            return plan.num_programs, len(pricer.names)

        of_4, of_5, of_96 = map(priced, (4, 5, 96))
        assert of_96 == of_5
        assert of_96[0] == of_4[0] == 105

    def test_two_axes_shard_rows_on_the_outer_one(self):
        found = search(*zoo_types("gpt-tiny"), mesh_of(data=2, model=4))
        assert set(found.choices) == {("rows", "columns")}

    def test_or_every_combination(self):
        found = search(*PATTERNS["mlp"](), mesh_of(data=2, model=4), every_combination=True)
        assert set(found.choices) == {("columns", "columns")}

    def test_segments_are_then_shorter_so_that_all_strategies_can_be_priced(self):
        """Nine choices a block: three of them have 729 strategies, and two 81."""
        pricer = FakePricer()
        step, args = PATTERNS["mlp"]()
        found = search(step, args, mesh_of(data=2, model=4), every_combination=True, pricer=pricer)
        assert sorted(found.lengths) == [1, 2]
        assert len([name for name in pricer.names if re.match(r"segment \d+: [^,]*$", name)]) < 81 + 9 + 9
        check_same(found.apply(step, donate=False)(*args), jax.jit(step)(*args))

    def test_the_batch_axis_may_be_the_inner_one(self):
        found = search(*zoo_types("gpt-tiny", num_layers=1), mesh_of(model=4, data=2), batch_axis="data")
        assert set(found.choices) == {("columns", "rows")}

    def test_an_axis_that_is_called_outer_is_like_any_other(self):
        """By default the first axis shards the batch, whatever the second is called; a name is that of an axis."""
        first = search(*PATTERNS["mlp"](), mesh_of(inner=2, outer=4))
        second = search(*PATTERNS["mlp"](), mesh_of(inner=2, outer=4), batch_axis="outer")
        assert {names[0] for names in first.choices} == {"rows"}
        assert {names[1] for names in first.choices} != {"rows"}
        assert {names[1] for names in second.choices} == {"rows"}

    @pytest.mark.parametrize("axis", ["outer", "x"])
    def test_one_axis_is_held_to_the_batch_only_if_it_is_named(self, axis):
        free, held = (search(*PATTERNS["mlp"](), mesh_of(**{axis: 8}), batch_axis=name) for name in (None, axis))
        assert free.num_programs > held.num_programs

    def test_a_baseline_that_was_not_searched_among_may_be_chosen(self):
        """Megatron shards columns on the last axis, on which the search always shards rows."""
        prices = FakePricer(times_ms=TIMES_MS | {"rows/columns": 0.1, "rows/contracted": 0.1})
        found = search(*PATTERNS["mlp"](), mesh_of(data=2, model=4), batch_axis="model", pricer=prices)
        assert found.choices == (("rows", "columns"), ("rows", "contracted"), ("rows", "columns"))
        assert {baseline.name: baseline.time_s for baseline in found.baselines}["megatron"] == found.time_s

    def test_progress_is_reported(self, mesh):
        reported = []
        search(*PATTERNS["mlp"](), mesh, progress=lambda *call: reported.append(call))
        assert reported[0] == (0, 1, "analysing the step")
        assert reported[1][1] == 27


class TestFailures:
    def test_a_candidate_that_fails_is_rejected_and_named(self, mesh):
        prices = FakePricer(fails=lambda name: name == "segment 0: columns columns columns")
        found = search(*PATTERNS["mlp"](), mesh, pricer=prices)
        assert found.choices != (("columns",),) * 3
        assert found.time_s == pytest.approx(7e-3)
        assert found.notes == (
            "failed: segment 0: columns columns columns: out of memory (it is said to be too large)",
        )
        assert "columns columns columns: out of memory" in str(found)

    def test_if_all_fail_there_is_no_plan(self, mesh):
        prices = FakePricer(fails=lambda name: name.startswith("segment 0"))
        with pytest.raises(ShardingError, match="segment 0 of 1 needs a strategy with a finite time, but all of them"):
            search(*PATTERNS["mlp"](), mesh, pricer=prices)

    def test_a_baseline_that_fails_has_no_price(self, mesh):
        prices = FakePricer(fails=lambda name: "zero 3" in name)
        found = search(*PATTERNS["mlp"](), mesh, pricer=prices)
        assert "no price" in str(found)

    def test_nothing_fits(self, mesh):
        with pytest.raises(ShardingError, match=r"memory_limit_bytes=29 .* is too little: .* need 30 bytes"):
            search(*PATTERNS["mlp"](), mesh, memory_limit_bytes=29)


class TestBadInput:
    @pytest.mark.parametrize("limit", ["16MiB", True, float("nan"), float("inf")])
    def test_a_limit_that_is_no_number(self, mesh, limit):
        with pytest.raises(ShardingError, match=f"memory_limit_bytes={limit!r} is no number of bytes"):
            search(*PATTERNS["mlp"](), mesh, memory_limit_bytes=limit)

    @pytest.mark.parametrize("limit", [0, -5, -1e9])
    def test_a_limit_that_leaves_nothing(self, mesh, limit):
        with pytest.raises(ShardingError, match=rf"memory_limit_bytes={limit!r} leaves nothing\. .* None is all that"):
            search(*PATTERNS["mlp"](), mesh, memory_limit_bytes=limit)

    @pytest.mark.parametrize("count", [-3, 1.5, True])
    def test_a_number_of_finalists_that_is_none(self, mesh, count):
        with pytest.raises(ShardingError, match=rf"num_finalists={count!r}, but it is a number of plans\. 0 prices"):
            search(*PATTERNS["mlp"](), mesh, num_finalists=count)

    def test_no_finalists_leave_the_baselines(self, mesh):
        found = search(*PATTERNS["mlp"](), mesh, num_finalists=0)
        assert found.time_s == min(baseline.time_s for baseline in found.baselines)

    @pytest.mark.parametrize(("args", "kind"), [({"a": 1}, "dict"), (inputs(8, 8), "ndarray"), (None, "NoneType")])
    def test_arguments_that_are_no_tuple(self, mesh, args, kind):
        with pytest.raises(ShardingError, match=rf"args must be a tuple .* of type {kind}\. .* `step\(state\)` pass"):
            search(PATTERNS["mlp"]()[0], args, mesh)

    def test_no_mesh(self):
        with pytest.raises(ShardingError, match=r"mesh must be a jax\.sharding\.Mesh, but is None\. Make one with"):
            search(*PATTERNS["mlp"](), None)

    def test_a_mesh_with_devices_of_other_processes(self, mesh, monkeypatch):
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        with pytest.raises(ShardingError, match=r"devices of other processes \(0\), .*jax\.local_devices"):
            search(*PATTERNS["mlp"](), mesh)

    @pytest.mark.parametrize("cache", ["prices", Path("prices"), 3])
    def test_a_cache_that_is_none(self, mesh, cache):
        message = (
            rf"cache must be a jaxquard\.pricing\.PriceCache, None or 'default', but is {re.escape(repr(cache))}\."
        )
        with pytest.raises(ShardingError, match=message):
            search(*PATTERNS["mlp"](), mesh, pricer=None, cache=cache)

    def test_a_pricer_that_is_none(self, mesh):
        with pytest.raises(ShardingError, match=r"but Bare has no price_all and no compare\. Leave it out to"):
            search(*PATTERNS["mlp"](), mesh, pricer=type("Bare", (), {})())

    def test_a_pricer_of_another_mesh(self):
        with MeasuredPricer(mesh_of(a=4, b=2), cache=None) as pricer, pytest.raises(ShardingError) as caught:
            search(*PATTERNS["mlp"](), mesh_of(a=2, b=4), pricer=pricer)
        assert str(caught.value) == (
            "the pricer measures on another mesh than the one to plan for: (a=4, b=2) of devices 0, 1, 2, 3, 4, 5, 6, "
            "7, not (a=2, b=4) of devices 0, 1, 2, 3, 4, 5, 6, 7. Make it with MeasuredPricer(mesh)."
        )

    def test_three_axes(self):
        with pytest.raises(
            ShardingError, match=r"one or two axes to shard over, but found 3: {'a': 2, 'b': 2, 'c': 2}"
        ):
            search(*PATTERNS["mlp"](), mesh_of(a=2, b=2, c=2))

    def test_a_batch_axis_that_is_not_there(self):
        for name in ("batch", "outer", "", "first"):
            with pytest.raises(ShardingError) as caught:
                search(*PATTERNS["mlp"](), mesh_of(data=2, model=4), batch_axis=name)
            assert str(caught.value) == (
                f"batch_axis={name!r}, but the mesh has the axes data, model. Name one of them, or leave it out for "
                "the first of two axes."
            )

    def test_a_batch_axis_and_every_combination(self):
        with pytest.raises(
            ShardingError, match=r"batch_axis='data' holds one axis to the batch, but every_combination"
        ):
            search(*PATTERNS["mlp"](), mesh_of(data=2, model=4), batch_axis="data", every_combination=True)

    def test_an_axis_that_divides_nothing(self):
        step = sgd(lambda params, batch: jnp.sum((batch @ params["w"]) ** 2))
        with pytest.raises(
            ShardingError, match=r"contraction at w, test_search_sharding.py:\d+ has no dim that 8 devices"
        ):
            search(step, (weights(w=(6, 10)), inputs(3, 6)), mesh_of(x=8))

    def test_the_message_names_the_sizes(self):
        step = sgd(lambda params, batch: jnp.sum((batch @ params["w"]) ** 2))
        with pytest.raises(ShardingError, match=r"rows 3, columns 10, contracted 6\. Use a mesh axis whose size"):
            search(step, (weights(w=(6, 10)), inputs(3, 6)), mesh_of(x=8))

    def test_a_block_that_the_axes_together_do_not_divide(self):
        """Each axis divides a dim, but they divide the same one, and not together."""
        step = sgd(lambda params, batch: jnp.sum((batch @ params["w"]) ** 2))
        with pytest.raises(
            ShardingError,
            match=r"the block at w, \w+.py:\d+ has no dims that a mesh of 2 x 4 divides; .* rows into \d+",
        ):
            search(step, (weights(w=(3, 5)), inputs(4, 3)), mesh_of(data=2, model=4))

    def test_a_step_without_contractions(self, mesh):
        step = sgd(lambda params, batch: jnp.sum((params["w"] - batch) ** 2))
        with pytest.raises(ShardingError, match="products, convolutions and look-ups in tables, but this one has none"):
            search(step, (weights(w=(8, 8)), inputs(8, 8)), mesh)

    def test_a_step_that_does_nothing(self, mesh):
        with pytest.raises(ShardingError, match="it computes nothing"):
            search(lambda state: state, (inputs(8, 8),), mesh)

    def test_the_users_own_error_is_untouched(self, mesh):
        error = RuntimeError("mine")

        def step(state, batch):
            raise error

        with pytest.raises(RuntimeError) as caught:
            search(step, (inputs(8, 8), inputs(8, 8)), mesh)
        assert caught.value is error
        assert str(error) == "mine"

    def test_nor_is_one_of_jax(self, mesh):
        with pytest.raises(TypeError, match="dot_general requires contracting dimensions to have the same shape"):
            search(sgd(lambda w, x: jnp.sum(x @ w)), (inputs(8, 8), inputs(8, 4)), mesh)

    def test_an_operation_without_a_rule_is_named(self, mesh):
        def loss(params, batch):
            type_ = jax.ShapeDtypeStruct((16, 64), jnp.float32)
            seen = jax.pure_callback(lambda x: x, type_, jax.lax.stop_gradient(batch @ params["w1"]))
            return jnp.sum(seen) + jnp.sum(batch @ params["w1"])

        found = search(sgd(loss), (weights(w1=(32, 64)), inputs(16, 32)), mesh)
        assert "operations without a rule, not partitioned: pure_callback" in str(found)

    def test_a_step_that_returns_no_state_gets_a_note(self, mesh):
        step = lambda params, batch: jnp.sum((batch @ params["w"]) ** 2)  # noqa: E731
        found = search(step, (weights(w=(16, 32)), inputs(8, 16)), mesh)
        assert "note: no argument is state: none comes back" in str(found)


class TestWithoutALimit:
    """The devices' memory is the limit, if prices are measured on them."""

    @pytest.fixture
    def search_with(self, mesh, monkeypatch):
        class Measured(FakePricer):
            def __init__(self, mesh, *, cache):
                sizes = {"rows": 30, "columns": 20, "contracted": 10, "scattered": 1}
                super().__init__(times_ms={"rows": 1, "columns": 2, "contracted": 3, "scattered": 9}, sizes=sizes)

            def close(self):
                pass

        def search_with(capacity_bytes, **more):
            monkeypatch.setattr(search_module, "MeasuredPricer", Measured)
            monkeypatch.setattr(search_module, "capacity_bytes", lambda mesh: capacity_bytes)
            return search_sharding(*PATTERNS["mlp"](), mesh=mesh, time_budget_s=None, **more)

        return search_with

    @pytest.mark.parametrize("capacity", [None, 90, 10**9])
    def test_the_fastest_is_taken_if_it_fits(self, search_with, capacity):
        assert search_with(capacity).size_bytes == 90

    def test_else_the_fastest_that_fits(self, search_with):
        assert search_with(75).size_bytes == 70
        assert search_with(75) == search_with(10**9, memory_limit_bytes=75)

    def test_a_limit_of_the_users_counts_instead(self, search_with):
        assert search_with(75, memory_limit_bytes=90).size_bytes == 90

    def test_if_nothing_fits_the_device_is_blamed(self, search_with):
        with pytest.raises(
            ShardingError, match=r"^the 0\.00 MiB that each device has are too little: .* need 30 bytes"
        ):
            search_with(2)


class TestState:
    def test_the_form_of_the_result_makes_no_difference(self, mesh):
        """Moments that are not known as state would be whole on every device."""
        step, args = momentum_step(lambda params, moments, value: (params, moments, value))
        nested, _ = momentum_step(lambda params, moments, value: {"now": (params, moments), "loss": value})
        prices = FakePricer(fails=lambda name: "zero 3" not in name)
        flat, found = (search(one, args, mesh, pricer=prices) for one in (step, nested))
        assert found.specs == flat.specs
        assert found.specs["argument 1['w']"] != PartitionSpec()
        assert found.notes == flat.notes

    def test_results_stay_where_the_next_step_wants_them(self, mesh):
        nested, (params, moments, batch) = momentum_step(lambda *results: {"now": results[:2], "loss": results[2]})
        found = search(nested, (params, moments, batch), mesh)
        step = found.apply(nested)
        for _ in range(2):
            params, moments = step(params, moments, batch)["now"]
        wanted = NamedSharding(mesh, found.specs["argument 1['w']"])
        assert moments["w"].sharding.is_equivalent_to(wanted, 2)
        assert not wanted.is_fully_replicated


def momentum_step(put_together):
    def step(params, moments, batch):
        value, grads = jax.value_and_grad(lambda params: jnp.sum((batch @ params["w"]) ** 2))(params)
        moments = jax.tree.map(lambda moment, grad: 0.9 * moment + grad, moments, grads)
        params = jax.tree.map(lambda param, moment: param - 0.1 * moment, params, moments)
        return put_together(params, moments, value)

    return step, (weights(w=(16, 32)), {"w": jnp.zeros((16, 32))}, inputs(8, 16))


def test_analysis_knows_its_axes():
    assert dict(analyse(*PATTERNS["mlp"](), {"data": 2, "model": 4}).axes) == {"data": 2, "model": 4}
