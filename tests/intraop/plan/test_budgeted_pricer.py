"""A budget of time goes to what matters, and what is left out is said."""

import math
import re
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.budgeted_pricer import RESHARD, BudgetedPricer
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.pricing import Failure, FailureReason, Price, ShardedProgram
from tests.intraop.diffusion_unet import diffusion_unet_step
from tests.intraop.fake_pricer import PROVENANCE, FakePricer
from tests.intraop.patterns import PATTERNS
from tests.intraop.steps import inputs, mesh_of, sgd, weights
from tests.intraop.unet_step import unet_step
from tests.machine_pace import machine_pace


def program(name):
    jaxpr = jax.make_jaxpr(jnp.sin)(jax.ShapeDtypeStruct((8,), jnp.float32))
    return ShardedProgram(name=name, jaxpr=jaxpr, in_specs=(jax.P(),), out_specs=(jax.P(),))


class Named:
    """A program costs what its name says, times a factor; as many as it has time for have a price."""

    def __init__(self, factor=1.0, most=math.inf):
        self.factor, self.most, self.names, self.compared, self.ends_s = factor, most, [], 0, []

    def price(self, program):
        time_s = self.factor * float(program.name)
        return Price(time_s=time_s, peak_bytes=int(100 * self.factor), spread=None, provenance=PROVENANCE)

    def price_all(self, programs, *, groups=None, on_progress=None, end_s=math.inf):
        self.ends_s.append(end_s)
        count = 0 if time.monotonic() >= end_s else int(min(len(programs), self.most - len(self.names)))
        self.names += [program.name for program in programs[:count]]
        return [*map(self.price, programs[:count]), *map(late, programs[count:])]

    def compare(self, programs, *, groups=None, on_progress=None, end_s=math.inf):
        self.compared += 1
        self.ends_s.append(end_s)
        return [self.price(program) for program in programs]


def late(program):
    return Failure(name=program.name, reason=FailureReason.NO_TIME, message="the time was over")


def budgeted(fine, budget_s=1000.0, recurrences=None, start_s=None):
    return BudgetedPricer(fine, coarse=Named(), recurrences=recurrences or {}, budget_s=budget_s, start_s=start_s)


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
    fine = Named(most=8)
    names = [*("1.0", "1.1", "1.2", "1.3"), *("1.01", "1.11", "1.21", "1.31"), *("1.02", "1.12", "1.22", "1.32")]
    price(budgeted(fine, recurrences={1: 10, 2: 3}), names, [0] * 4 + [1] * 4 + [2] * 4)
    assert fine.names == ["1.01", "1.11", "1.21", "1.02", "1.12", "1.22", "1.0", "1.1"]


def test_for_lack_of_time_prices_are_modelled():
    pricer = budgeted(Named(3.0, most=8))
    found = price(pricer, [f"{1 + number / 100}" for number in range(20)], [0] * 20)
    assert [one.time_s for one in found] == pytest.approx([3 + 3 * number / 100 for number in range(20)])
    assert "12 for lack of time" in pricer.notes[0]


def test_every_phase_ends_within_the_budget():
    fine, start_s = Looping(), time.monotonic()
    pricer = budgeted(fine, 100.0, start_s=start_s)
    pricer.price_usual([program("1")], groups=[0])
    price(pricer, ["2"], [0])
    price(pricer, ["2.1"], [0])
    pricer.compare([program("1"), program("2")])
    pricer.price_loops([program("1"), program("2")], budget_s=300.0)
    shares = [(end_s - start_s) / 100 for end_s in fine.ends_s]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1


def test_usual_plans_are_priced_before_anything_else_and_not_pruned():
    fine = Named(2.0, most=3)
    pricer = budgeted(fine)
    pricer.price_usual([program(name) for name in ("9", "1", "9")], groups=[(0,)] * 3)
    assert fine.names == ["9", "1"]
    found = price(pricer, ["9", "1", "1.5", "1.6"], [(0,)] * 4)
    assert fine.names == ["9", "1", "1.5"]
    assert [one.time_s for one in found] == pytest.approx([18, 2, 3, 3.2])


def test_without_time_for_the_usual_plans_all_prices_are_in_closed_form():
    fine = Looping(2.0, most=1)
    pricer = budgeted(fine)
    pricer.price_usual([program(name) for name in "12"], groups=[(0,)] * 2)
    assert [one.time_s for one in price(pricer, ["1", "2", "3"], [(0,)] * 3)] == [1, 2, 3]
    assert [one.time_s for one in pricer.compare([program("1"), program("2")], groups=[(0,)] * 2)] == [1, 2]
    assert (fine.names, fine.compared) == (["1"], 0)
    # What runs has the time that it takes.
    assert [one.time_s for one in pricer.price_loops([program("1"), program("2")], budget_s=9.0)] == [2, 4]
    assert pricer.notes == (
        "time_budget_s=1000 was too short for prices of the usual plans: all programs have modelled prices",
    )


def test_programs_count_once():
    pricer = budgeted(Named(most=8))
    names = [f"{1 + number / 100}" for number in range(20)]
    price(pricer, names, [0] * 20)
    price(pricer, names, [0] * 20)
    assert pricer.notes[0].startswith("time_budget_s=1000 left out 12 of 20 programs")


def test_what_has_no_price_is_modelled_as_its_group_or_as_others_of_its_sort_turned_out():
    class OfGroups(Named):
        """Kind 0 takes twice as long as its coarse price, kind 1 four times, reshards eight times."""

        def price_all(self, programs, *, groups=None, on_progress=None, end_s=math.inf):
            factors = [8 if isinstance(group, tuple) else 2 if group == 0 else 4 for group in groups]
            prices = super().price_all(programs)
            return [
                replace(one, time_s=one.time_s * factor) if isinstance(one, Price) else one
                for one, factor in zip(prices, factors, strict=True)
            ]

    pricer = budgeted(OfGroups(most=3))
    price(pricer, ["1", "1.1", "1.2"], [0, 1, (RESHARD, 0)])
    modelled = price(pricer, ["1.5", "1.5", "1", "1", "1"], [0, 1, (0, 1), (RESHARD, 5), (7, 7)])
    assert [one.time_s for one in modelled] == pytest.approx([3, 6, 3, 8, 3])


def test_without_any_time_there_are_prices():
    fine = Named()
    pricer = budgeted(fine, 1.0, start_s=time.monotonic() - 2)
    assert [one.time_s for one in price(pricer, ["3", "4"], None)] == [3, 4]
    assert fine.names == []


def test_what_fails_stays_so():
    class Failing(Named):
        def price_all(self, programs, *, groups=None, on_progress=None, end_s=math.inf):
            return [Failure(name=one.name, reason=FailureReason.NO_RUN, message="it fails") for one in programs]

    (found,) = price(budgeted(Failing()), ["1"], None)
    assert isinstance(found, Failure)


class Looping(Named):
    """Runs training loops, too."""

    looped = ()
    most_loops = math.inf

    def price_loops(self, programs, *, budget_s, on_progress=None, end_s=math.inf):
        self.ends_s.append(end_s)
        self.looped = [one.name for one in programs]
        count = min(len(programs), self.most_loops)
        return [*map(self.price, programs[:count]), *map(late, programs[count:])]


@pytest.mark.parametrize(("most", "count"), [(1, 0), (2, 2), (3, 3)])
def test_loops_compare_two_plans_at_least(most, count):
    fine = Looping()
    fine.most_loops = most
    found = budgeted(fine).price_loops([program(name) for name in "3456"], budget_s=300.0)
    assert [isinstance(one, Price) for one in found] == [True] * count + [False] * (4 - count)


@pytest.mark.parametrize(("spent_s", "compared"), [(0.0, 1), (990.0, 0)])
def test_candidates_are_compared_if_there_is_time(spent_s, compared):
    fine = Named()
    pricer = budgeted(fine, start_s=time.monotonic() - spent_s)
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
    _, of_segments, *_ = pricer.calls
    asked = [name.split(":")[0] for name in of_segments if name.startswith("segment ")]
    assert list(dict.fromkeys(asked)) == ["segment 1", "segment 8", "segment 0"]
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
    assert "modelled" in note
    state, loss = plan.apply(step, donate=False)(plan.shard(args[0]), args[1])
    expected, expected_loss = jax.jit(step)(*args)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-5)
    for found, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        assert jnp.allclose(jax.device_get(found), wanted, rtol=1e-5, atol=1e-5)
