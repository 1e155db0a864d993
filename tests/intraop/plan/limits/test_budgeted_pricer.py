"""A budget of time goes to what matters, and what is left out is said."""

import re
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.limits import pricing_pace
from jaxquard.intraop.plan.limits.budgeted_pricer import RESHARD, BudgetedPricer
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.pricing import Failure, FailureReason, Price, ShardedProgram
from tests.intraop.diffusion_unet import diffusion_unet_step
from tests.intraop.fake_pricer import PROVENANCE, FakePricer
from tests.intraop.patterns import PATTERNS
from tests.intraop.steps import inputs, mesh_of, sgd, weights
from tests.intraop.unet_step import unet_step
from tests.machine_pace import machine_pace


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(pricing_pace, "num_cores", lambda: 2)


def program(name):
    jaxpr = jax.make_jaxpr(jnp.sin)(jax.ShapeDtypeStruct((8,), jnp.float32))
    return ShardedProgram(name=name, jaxpr=jaxpr, in_specs=(jax.P(),), out_specs=(jax.P(),))


class Named:
    """A program costs what its name says, times a factor; each takes a second of the clock."""

    def __init__(self, factor=1.0, each_s=1.0):
        self.factor, self.each_s, self.now_s, self.names, self.compared = factor, each_s, 0.0, [], 0

    def clock(self):
        return self.now_s

    def price(self, program):
        time_s = self.factor * float(program.name)
        return Price(time_s=time_s, peak_bytes=int(100 * self.factor), spread=None, provenance=PROVENANCE)

    def price_all(self, programs, *, groups=None, on_progress=None):
        self.now_s += self.each_s * len(programs)
        self.names += [program.name for program in programs]
        return [self.price(program) for program in programs]

    def compare(self, programs, *, groups=None, on_progress=None):
        self.compared += 1
        return [self.price(program) for program in programs]


def budgeted(fine, budget_s, recurrences=None):
    return BudgetedPricer(fine, coarse=Named(), recurrences=recurrences or {}, budget_s=budget_s, clock=fine.clock)


def price(pricer, names, groups):
    return pricer.price_all([program(name) for name in names], groups=groups)


def test_with_enough_time_all_that_can_win_are_priced():
    fine = Named(2.0)
    pricer = budgeted(fine, 1e6)
    found = price(pricer, ["1", "2.5", "2.6", "10"], [0] * 4)
    assert sorted(fine.names) == ["1", "2.5"]
    # The others are scaled as those were.
    assert [one.time_s for one in found] == pytest.approx([2, 5, 5.2, 20])
    assert [one.peak_bytes for one in found] == [200] * 4
    assert pricer.notes == (
        "time_budget_s=1e+06 left out 2 of 4 programs, which have modelled prices: 2 that by FLOPs and volume cannot "
        "win, 0 for lack of time",
    )


def test_kinds_that_recur_come_first():
    fine = Named()
    names = [*("1.0", "1.1", "1.2", "1.3"), *("1.01", "1.11", "1.21", "1.31"), *("1.02", "1.12", "1.22", "1.32")]
    price(budgeted(fine, 13.0, {1: 10, 2: 3}), names, [0] * 4 + [1] * 4 + [2] * 4)
    # Eight seconds, and then the time for segments is over.
    assert fine.names == ["1.01", "1.11", "1.21", "1.02", "1.12", "1.22", "1.0", "1.1"]


def test_for_lack_of_time_prices_are_modelled():
    fine = Named(3.0)
    pricer = budgeted(fine, 13.0)
    found = price(pricer, [f"{1 + number / 100}" for number in range(20)], [0] * 20)
    assert len(fine.names) == 8
    assert [one.time_s for one in found] == pytest.approx([3 + 3 * number / 100 for number in range(20)])
    assert "12 for lack of time" in pricer.notes[0]


@pytest.mark.parametrize("budget_s", [0.5, 1.0, 3.0, 10.0, 20.0])
@pytest.mark.parametrize("each_s", [0.1, 1.0])
def test_nothing_begins_that_would_not_end_in_time(budget_s, each_s):
    fine = Named(each_s=each_s)
    price(budgeted(fine, budget_s), [f"{1 + number / 100}" for number in range(40)], [0] * 40)
    # At first the time of a program is a guess.
    assert fine.now_s <= max(0.65 * budget_s, 2 * each_s)
    assert fine.now_s >= 0.65 * budget_s - 2 * each_s or len(fine.names) == 40 or budget_s < 2


def test_programs_count_once():
    pricer = budgeted(Named(), 13.0)
    names = [f"{1 + number / 100}" for number in range(20)]
    price(pricer, names, [0] * 20)
    price(pricer, names, [0] * 20)
    assert pricer.notes[0].startswith("time_budget_s=13 left out 9 of 20 programs")


def test_neighbours_are_modelled_as_their_kinds_turned_out():
    class OfGroups(Named):
        """Kind 0 takes twice as long as its coarse price, kind 1 four times, reshards eight times."""

        def price_all(self, programs, *, groups=None, on_progress=None):
            factors = [8 if isinstance(group, tuple) else 2 if group == 0 else 4 for group in groups]
            prices = super().price_all(programs)
            return [replace(one, time_s=one.time_s * factor) for one, factor in zip(prices, factors, strict=True)]

    fine = OfGroups()
    pricer = budgeted(fine, 1000.0)
    price(pricer, ["1", "1.1", "1.2"], [0, 1, (RESHARD, 0)])
    fine.now_s = 1e6
    groups = [(0, 0), (1, 1), (0, 1), (RESHARD, 5), (7, 7)]
    modelled = price(pricer, ["1"] * 5, groups)
    assert [one.time_s for one in modelled] == pytest.approx([2, 4, 3, 8, 4])


def test_bounds_on_plans_rank_programs():
    fine = Named()
    pricer = budgeted(fine, 1e6)
    pricer.price_all([program(name) for name in ("1", "2", "3")], groups=[0] * 3, slacks=lambda coarse: [2.0, 1.0, 0.0])
    assert fine.names == ["3", "2"]


def test_without_any_time_there_are_prices():
    fine = Named()
    fine.now_s = 5.0
    pricer = budgeted(fine, -1.0)
    assert [one.time_s for one in price(pricer, ["3", "4"], None)] == [3, 4]
    assert fine.names == []


def test_what_fails_stays_so():
    class Failing(Named):
        def price_all(self, programs, *, groups=None, on_progress=None):
            return [Failure(name=one.name, reason=FailureReason.NO_RUN, message="it fails") for one in programs]

    (found,) = price(budgeted(Failing(), 100.0), ["1"], None)
    assert isinstance(found, Failure)


class Looping(Named):
    """Runs training loops, too."""

    looped = ()

    def price_loops(self, programs, *, budget_s, on_progress=None):
        self.looped = [one.name for one in programs]
        self.now_s += self.each_s * len(programs)
        return [self.price(one) for one in programs]


def looping(fine, budget_s, step_equations):
    return BudgetedPricer(
        fine, coarse=Named(), recurrences={}, budget_s=budget_s, step_equations=step_equations, clock=fine.clock
    )


@pytest.mark.parametrize(("left_s", "count"), [(0.3, 0), (0.9, 0), (1.1, 2), (1.6, 3), (100, 4)])
def test_as_many_loops_run_as_there_is_time_for(left_s, count):
    fine = Looping()
    pricer = looping(fine, 20.0, 1)
    price(pricer, ["1.1", "1.2"], [0, 0])
    fine.now_s = 20.0 - left_s
    found = pricer.price_loops([program(name) for name in "3456"], budget_s=300.0)
    assert [isinstance(one, Price) for one in found] == [True] * count + [False] * (4 - count)
    assert len(fine.looped) == count


def test_segments_leave_time_for_loops():
    names = [f"{1 + number / 100}" for number in range(40)]
    # Two loops of 160 equations take five times as long as a program of one.
    with_loops, without = Looping(), Named()
    price(looping(with_loops, 40.0, 160), names, [0] * 40)
    price(looping(without, 40.0, 160), names, [0] * 40)
    assert len(without.names) == 26
    assert len(with_loops.names) == 22
    # Where they take longer than all of it, segments have their time.
    too_long = Looping()
    price(looping(too_long, 40.0, 10_000), names, [0] * 40)
    assert len(too_long.names) == 26


@pytest.mark.parametrize(("budget_s", "compared"), [(1000.0, 1), (30.0, 0)])
def test_candidates_are_compared_if_there_is_time(budget_s, compared):
    fine = Named()
    pricer = budgeted(fine, budget_s)
    price(pricer, ["1.0" + number * "0" for number in range(8)], [0] * 8)
    found = pricer.compare([program("1.0" + number * "0") for number in range(8)], groups=[0] * 8)
    assert fine.compared == compared
    assert [one.time_s for one in found] == [1] * 8


@pytest.mark.parametrize("budget", [0, -1, "60", True, float("nan")])
def test_a_budget_that_is_none(budget):
    with pytest.raises(ShardingError, match=r"^time_budget_s=.* is a number of seconds above 0"):
        search_sharding(*PATTERNS["mlp"](), mesh=mesh_of(x=8), pricer=FakePricer(), time_budget_s=budget)


def eight_layers_and_a_head():
    """The head multiplies twice as much as a layer, but there are eight of these."""

    def loss(params, x):
        for layer in params["layers"]:
            x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
        return jnp.mean((x @ params["head"]) ** 2)

    layer = weights(up=(64, 256), down=(256, 64))
    return sgd(loss), ({"layers": [layer] * 8, **weights(head=(64, 1024))}, inputs(64, 64))


def test_a_search_prices_the_kinds_that_recur_most_before_others_and_counts_what_it_left_out():
    pricer = FakePricer()
    found = search_sharding(
        *eight_layers_and_a_head(), mesh=mesh_of(x=8), pricer=pricer, num_finalists=0, time_budget_s=600
    )
    # The first layer needs no gradient of its input, so it is of another kind.
    assert [segment.kind for segment in found.segments] == [0, *[1] * 7, 2]
    asked = [name.split(":")[0] for name in pricer.names if name.startswith("segment ")]
    assert asked[:3] == ["segment 1"] * 3
    assert list(dict.fromkeys(asked))[:3] == ["segment 1", "segment 8", "segment 0"]
    (note,) = found.notes
    left_out, total, pruned, late = map(int, re.findall(r" (\d+)", note))
    assert (left_out, late) == (pruned, 0)
    assert 0 < left_out < total


def test_a_plan_says_what_was_left_out():
    found = search_sharding(
        *PATTERNS["mlp"](), mesh=mesh_of(x=8), pricer=FakePricer(), num_finalists=0, time_budget_s=1e-6
    )
    assert any(note.startswith("time_budget_s=") and "for lack of time" in note for note in found.notes)
    assert replace(found, notes=()).time_s > 0


@pytest.mark.slow
@pytest.mark.parametrize("make", [unet_step, diffusion_unet_step])
def test_an_irregular_model_has_a_plan_in_a_minute(make):
    step, args = make()
    start_s = time.monotonic()
    plan = search_sharding(step, args, mesh=mesh_of(x=8), cache=None, time_budget_s=60)
    assert time.monotonic() - start_s < 1.2 * 60 * max(1.0, machine_pace())
    data_parallel = next(one for one in plan.baselines if one.name == "data parallel")
    assert plan.time_s <= 1.05 * data_parallel.time_s
    (note,) = (note for note in plan.notes if "time_budget_s" in note)
    left_out, total, pruned, late = map(int, re.findall(r" (\d+)", note))
    assert left_out == pruned + late < total
    assert "measured in part, else modelled" in plan.provenance
    state, loss = plan.apply(step, donate=False)(plan.shard(args[0]), args[1])
    expected, expected_loss = jax.jit(step)(*args)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-5)
    for found, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(jax.device_get(found), wanted, rtol=1e-5, atol=1e-5)
