"""Communication and computation in real runs on 8 virtual devices."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from jaxquard.pricing import PriceCache
from jaxquard.pricing.measure.runs import profile_runs
from jaxquard.pricing.measure.runs.timed_program import TimedProgram
from jaxquard.pricing.program.lower_program import lower_program
from tests.pricing.programs import array, line_mesh, make, quick_pricer


def elementwise():
    return make(lambda x: jnp.sin(x) + 1, array(4096, 128), ins=(P("x"),), outs=(P("x"),), name="elementwise")


def only_sum():
    sums = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=line_mesh(), in_specs=P("x"), out_specs=P())
    return make(sums, array(64, 1 << 16), ins=(P("x"),), outs=(P(),), name="only sum")


def partial_products(size=512):
    types = array(size, size), array(size, size)
    return make(jnp.matmul, *types, ins=(P(None, "x"), P("x")), outs=(P(),), name="partial products")


def sum_of_product(size=768):
    types = array(size, size), array(size, size)
    return make(lambda x, w: (x @ w).sum(), *types, ins=(P("x"), P()), outs=(P(),), name="sum of product")


def no_trace_is_left(folder):
    """Only one can be under way."""
    with jax.profiler.trace(folder / "another"):
        pass


def pricer(cache=None, **more):
    return quick_pricer(cache, slow_factor=1e9, **{"num_profiled_runs": 3, **more})


def share_of(program):
    price = pricer().price(program)
    return price.communication_s / price.time_s


def test_the_parts_are_what_they_should_be():
    programs = [elementwise(), only_sum(), partial_products(), sum_of_product()]
    prices = pricer().price_all(programs)
    shares = [price.communication_s / price.time_s for price in prices]
    for price in prices:
        assert price.compute_s + price.communication_s == pytest.approx(price.time_s, rel=1e-12)
    assert shares[0] == 0
    # What is left of a lone sum is how far apart the devices begin: little, unless others take their cores.
    lone = max([shares[1], *(share_of(only_sum()) for _ in range(2 if shares[1] <= 0.7 else 0))])
    assert lone > 0.7
    assert 0.02 < shares[2] < lone
    # Most devices wait in the sum for the others' products, which is no communication.
    assert min([shares[3], *(share_of(sum_of_product()) for _ in range(2 if shares[3] >= 0.3 else 0))]) < 0.3


def test_a_loop_is_looked_into():
    def loop(x, w):
        return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ w) @ w.T, None), x, None, length=4)[0]

    program = make(loop, array(256, 256), array(256, 256), ins=(P(), P(None, "x")), outs=(P(),))
    assert 0.02 < share_of(program) < 1


def test_nobody_asked():
    price = quick_pricer().price(partial_products(64))
    assert (price.compute_s, price.communication_s) == (None, None)


def test_a_price_without_the_split_does_not_answer_who_asks_for_it(tmp_path):
    cache, program = PriceCache(tmp_path), partial_products(64)
    plain = quick_pricer(cache, slow_factor=1e9).price(program)
    split = pricer(cache).price(program)
    assert split.communication_s is not None
    assert pricer(cache).price(program) == split
    assert quick_pricer(cache, slow_factor=1e9).price(program) == plain


def test_another_trace_is_under_way(tmp_path, caplog):
    cache, program = PriceCache(tmp_path / "prices"), partial_products(64)
    with jax.profiler.trace(tmp_path / "theirs"):
        prices = pricer(cache).price_all([program, elementwise()])
    assert "no trace could be started" in caplog.text
    assert [price.communication_s for price in prices] == [None, 0.0]
    assert pricer(cache).price(program).communication_s is not None


def test_a_profiled_run_that_fails_costs_the_split_alone(monkeypatch, caplog, tmp_path):
    original = TimedProgram.run

    def run(self, label=None):
        if label is not None:
            raise RuntimeError("gone")
        return original(self)

    monkeypatch.setattr(TimedProgram, "run", run)
    price = pricer().price(partial_products(64))
    assert price.communication_s is None
    assert caplog.text.count("a profiled run failed: gone") == 1
    no_trace_is_left(tmp_path)


def test_an_interrupt_leaves_no_trace_under_way(monkeypatch, tmp_path):
    original = TimedProgram.run

    def run(self, label=None):
        if label is not None:
            raise KeyboardInterrupt
        return original(self)

    class Direct:
        """Runs in this thread, so that an interrupt is one."""

        def run(self, do, *, limit_s):
            return do()

    monkeypatch.setattr(TimedProgram, "run", run)
    program = partial_products(64)
    executable = lower_program(program, mesh=line_mesh()).compile()
    timed = TimedProgram(program, executable, mesh=line_mesh(), shared={})
    with pytest.raises(KeyboardInterrupt):
        profile_runs.communication_shares({0: timed}, num_runs=1, limit_s=10, watch=Direct())
    no_trace_is_left(tmp_path)


def test_what_was_stopped_early_is_profiled_once(monkeypatch):
    labels = []
    original = TimedProgram.run

    def run(self, label="plain"):
        if label != "plain":
            labels.append(label)
            return original(self, label)
        original(self)
        return 1e-1 if self._types[0][0].shape == (64, 1 << 16) else 1e-3

    monkeypatch.setattr(TimedProgram, "run", run)
    prices = quick_pricer(num_profiled_runs=3, slow_factor=2.0).price_all([partial_products(32), only_sum()])
    assert [price.provenance.was_stopped_early for price in prices] == [False, True]
    assert sorted(labels) == [f"jaxquard run {run}" for run in ("0.0", "0.1", "0.2", "1.0")]
    assert prices[1].communication_s > 0


@pytest.mark.slow
def test_programs_that_processes_compile_are_split_too():
    with pricer(num_compilers=2) as apart:
        prices = apart.price_all([partial_products(64 * n) for n in range(1, 9)])
    assert all(price.communication_s > 0 for price in prices)
