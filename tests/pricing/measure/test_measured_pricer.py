import _thread
import gc
import math
import os
import subprocess
import sys
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxquard.errors import PricingError
from jaxquard.pricing import Failure, FailureReason, MeasuredPricer, Price, PriceCache, reshard_program
from jaxquard.pricing.compile.compilers import CompileInThreads
from jaxquard.pricing.end_of_time import StalledError
from jaxquard.pricing.measure import measured_pricer as measure
from jaxquard.pricing.measure import measurement
from jaxquard.pricing.measure.runs import timed_program
from jaxquard.pricing.measure.runs.timed_program import TimedProgram
from jaxquard.pricing.values.make_values import make_array
from tests.pricing.programs import array, line_mesh, make, product, quick_pricer


def test_prices_are_ordered_as_the_work_is():
    tiny, big = quick_pricer(slow_factor=1e9).price_all([product(16), product(1024)])
    assert tiny.time_s < big.time_s
    assert tiny.peak_bytes == 16 * 16 * 4 * (1 + 2 / 8)
    assert big.provenance.num_runs == 4
    assert big.provenance.num_devices == 8
    assert big.spread >= 0
    assert big.compute_s is None
    assert big.communication_s is None


def test_a_resharding_costs():
    avals = [array(2048, 1024)]
    stays = make(lambda x: x + 1, array(8), ins=(P("x"),), outs=(P("x"),))
    moves = reshard_program("moves", avals, [P("x")], [P(None, "x")])
    stay, move = quick_pricer(slow_factor=1e9).price_all([stays, moves])
    assert stay.time_s < move.time_s


def test_a_cached_price_is_not_measured_again(tmp_path, monkeypatch):
    cache = PriceCache(tmp_path)
    first = quick_pricer(cache).price_all([product(16), product(24)])
    monkeypatch.setattr(measure, "lower_program", None)
    seen = []
    second = quick_pricer(cache).price_all([product(24), product(16)], on_progress=seen.append)
    assert second == first[::-1]
    assert [(p.done, p.total, p.num_cached, p.left_s) for p in seen] == [
        (0, 2, 0, None),
        (1, 2, 1, None),
        (2, 2, 2, 0.0),
    ]


def test_a_price_is_found_by_what_a_program_lowers_to(tmp_path, monkeypatch):
    """Here a donation that is of no use."""
    cache = PriceCache(tmp_path)
    plain = make(lambda x: x.sum(), array(8))
    price = quick_pricer(cache).price(make(lambda x: x.sum(), array(8), donated=(0,)))
    monkeypatch.setattr(TimedProgram, "run", None)
    assert quick_pricer(cache).price(plain) == price


def test_the_environment_is_part_of_the_key(tmp_path):
    cache = PriceCache(tmp_path)
    quick_pricer(cache).price(product(16))
    seen = []
    quick_pricer(cache, num_runs=5).price_all([product(16)], on_progress=seen.append)
    assert seen[-1].num_cached == 0


def test_equal_programs_are_measured_once(monkeypatch):
    runs = []
    original = TimedProgram.run
    monkeypatch.setattr(TimedProgram, "run", lambda self: runs.append(self) or original(self))
    one, other = quick_pricer().price_all([product(16, "one"), product(16, "other")])
    assert one == other
    assert len(runs) == 5


def test_an_interrupted_search_goes_on(tmp_path):
    cache, programs = PriceCache(tmp_path), [product(8 * n) for n in range(1, 6)]

    def interrupt(progress):
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick_pricer(cache, round_size=1).price_all(programs, on_progress=interrupt)
    seen = []
    assert len(quick_pricer(cache).price_all(programs, on_progress=seen.append)) == 5
    assert seen[-1].num_cached == 3


def test_an_interrupt_during_a_run_stops_at_once(monkeypatch):
    started, release = threading.Event(), threading.Event()

    def run(self):
        started.set()
        _thread.interrupt_main()
        release.wait(200)
        return 1.0

    monkeypatch.setattr(TimedProgram, "run", run)
    start_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        quick_pricer().price(product(8))
    assert started.is_set()
    assert time.monotonic() - start_s < 150
    release.set()


def test_a_corrupt_price_is_measured_again(tmp_path):
    cache = PriceCache(tmp_path)
    quick_pricer(cache).price(product(16))
    for path in tmp_path.iterdir():
        path.write_text("{")
    price = quick_pricer(cache).price(product(16))
    assert quick_pricer(cache).price(product(16)) == price


def test_what_does_not_fit_is_rejected_and_the_rest_goes_on():
    huge = make(lambda x: x + jnp.ones((1 << 43,), jnp.float32), array(1 << 43), name="huge")
    failure, price = quick_pricer().price_all([huge, product(16)])
    assert isinstance(price, Price)
    assert isinstance(failure, Failure)
    assert failure.name == "huge"
    assert failure.reason is FailureReason.OUT_OF_MEMORY
    assert "GB on each device" in failure.message


def test_a_memory_limit_sets_aside():
    (failure,) = quick_pricer(memory_limit_bytes=1000).price_all([product(64)])
    assert failure.message == "it needs 2.05e-05 GB on each device, which has 1e-06 GB"


def test_out_of_memory_beside_others_is_tried_again_alone(monkeypatch):
    original, crowd = TimedProgram.run, []

    def run(self):
        crowd.append(self)
        if len(crowd) == 1:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.\nmore")
        return original(self)

    monkeypatch.setattr(TimedProgram, "run", run)
    assert all(isinstance(price, Price) for price in quick_pricer().price_all([product(16), product(24)]))


def test_what_is_tried_again_alone_has_the_memory_of_the_others(monkeypatch):
    """Also without the garbage collector, which may come too late."""
    original, seen, left = TimedProgram.run, weakref.WeakSet(), []

    def run(self):
        is_retried = self not in seen and len(runs) > 1
        runs.append(None)
        if is_retried:
            left.append(len(seen))
        seen.add(self)
        if len(runs) == 1:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.")
        return original(self)

    runs: list[None] = []
    monkeypatch.setattr(TimedProgram, "run", run)
    gc.disable()
    try:
        prices = quick_pricer().price_all([product(16), product(24)])
    finally:
        gc.enable()
    assert all(isinstance(price, Price) for price in prices)
    assert left == [0]


def test_what_could_not_be_compiled_beside_a_round_is_compiled_after_it(monkeypatch):
    """A GPU's compiler needs some of the device's memory."""
    said = []

    class Crowded(CompileInThreads):
        def start(self, lowered, *, free_outputs, end_s=math.inf):
            def finish():
                said.append("RESOURCE_EXHAUSTED: Failed to get configs for: 4 out of 50 instructions.")
                raise RuntimeError(said[-1])

            return finish

    monkeypatch.setattr(measure, "choose_compilers", lambda *_, **__: Crowded(2))
    with quick_pricer(round_size=4) as pricer:
        found = pricer.price_all([product(8 * n) for n in range(1, 9)])
    assert len(said) == 8
    assert all(isinstance(price, Price) for price in found)


def test_the_program_that_keeps_the_pace_holds_no_inputs_of_others(monkeypatch):
    shared = []

    def make(*args):
        array = make_array(*args)
        shared.append(weakref.ref(array))
        return array

    monkeypatch.setattr(timed_program, "make_array", make)
    pricer = quick_pricer()
    pricer.price_all([product(16), product(24), product(32)])
    assert len(shared) == 6
    gc.collect()
    assert sum(array() is not None for array in shared) == 2
    pricer.close()
    gc.collect()
    assert not any(array() for array in shared)


def test_before_something_does_not_fit_the_pace_is_let_go(monkeypatch):
    """Here there is room only as long as no program stays in memory."""
    pricer = quick_pricer(round_size=1)
    monkeypatch.setattr(
        measurement, "available_bytes", lambda mesh: 10**6 if pricer._reference._program is None else 100
    )
    assert all(isinstance(price, Price) for price in pricer.price_all([product(16), product(24)]))
    assert all(isinstance(price, Price) for price in pricer.price_all([product(32)]))


@pytest.mark.parametrize("num_stalls", [2, 3, 100])
def test_devices_that_do_not_answer_any_more_end_it(monkeypatch, num_stalls):
    """A candidate stalls, and then what has run before; that is tried three times."""
    original = TimedProgram.run
    left = [0]

    def run(self):
        if left[0] > 0:
            left[0] -= 1
            raise StalledError("no result within 120 s")
        return original(self)

    monkeypatch.setattr(TimedProgram, "run", run)
    with quick_pricer(round_size=1) as pricer:
        pricer.price(product(16))
        left[0] = num_stalls
        if num_stalls < 4:
            failure, price = pricer.price_all([product(24), product(32)])
            assert failure.reason is FailureReason.TOO_SLOW
            assert isinstance(price, Price)
        else:
            with pytest.raises(PricingError, match=r"^the devices do not answer any more: .* in 3 times 120 s\."):
                pricer.price_all([product(24), product(32)])


def test_what_does_not_run_is_rejected(monkeypatch):
    def run(self):
        raise RuntimeError("INTERNAL: broken\nmore")

    monkeypatch.setattr(TimedProgram, "run", run)
    with pytest.raises(PricingError, match=r"^mine: does not run \(INTERNAL: broken\)\. Take another"):
        quick_pricer().price(product(16, "mine"))


def test_a_sharding_that_divides_nothing_is_rejected():
    odd = make(lambda x: x + 1, array(7), ins=(P("x"),), name="odd")
    failure, price = quick_pricer().price_all([odd, product(16)])
    assert failure.reason is FailureReason.NO_LOWERING
    assert "\n" not in failure.message
    assert isinstance(price, Price)


def test_what_stalls_is_rejected(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(TimedProgram, "run", lambda self: release.wait(100))
    (failure,) = quick_pricer(limit_s=0.5).price_all([product(16)])
    release.set()
    assert failure.reason is FailureReason.TOO_SLOW
    assert failure.message == "no result within 0.5 s"


def times_of(monkeypatch, *series):
    """Lets the timed_programs of a call take given times, one series each."""
    given: dict[TimedProgram, list[float]] = {}

    def run(self):
        if self not in given:
            given[self] = list(series[len(given)])
        return given[self].pop(0)

    monkeypatch.setattr(TimedProgram, "run", run)


def test_a_slow_one_is_stopped_early(monkeypatch):
    times_of(monkeypatch, [9, 1.0, 1.2, 1.1, 1.3], [20, 6.0, 7.0, 5.9, 5.8], [9, 2.4, 2.7, 2.6, 2.5])
    best, slow, fair = quick_pricer().price_all([product(8), product(16), product(24)])
    assert (best.time_s, best.spread) == (1.0, pytest.approx(0.3))
    assert (slow.time_s, slow.spread, slow.provenance.num_runs) == (5.9, None, 3)
    assert slow.provenance.was_stopped_early
    assert (fair.time_s, fair.provenance.was_stopped_early) == (2.4, False)


def test_the_median_is_asked_for(monkeypatch, tmp_path):
    """It is a price of its own, beside the minimum."""
    runs = [9, 1.0, 1.4, 1.1, 1.3]
    times_of(monkeypatch, runs, runs)
    cache = PriceCache(tmp_path)
    for _ in range(2):
        assert quick_pricer(cache, takes_medians=True).price(product(8)).time_s == pytest.approx(1.2)
        assert quick_pricer(cache).price(product(8)).time_s == 1.0


def test_only_candidates_of_a_group_stop_each_other(monkeypatch):
    times_of(monkeypatch, [9, 1.0, 1.2, 1.1, 1.3], [20, 6.0, 7.0, 5.9, 5.8])
    _, slow = quick_pricer().price_all([product(8), product(16)], groups=["a", "b"])
    assert (slow.time_s, slow.provenance.was_stopped_early) == (5.8, False)


def test_cached_prices_stop_slow_ones_too(monkeypatch, tmp_path):
    times_of(monkeypatch, [9, 1.0, 1.2, 1.1, 1.3], [20, 6.0, 7.0, 5.9, 5.8])
    quick_pricer(PriceCache(tmp_path)).price(product(8))
    _, slow = quick_pricer(PriceCache(tmp_path)).price_all([product(8), product(16)])
    assert slow.provenance.was_stopped_early


def test_all_runs_together_have_a_limit(monkeypatch):
    times_of(monkeypatch, [9, 9, 9, 9, 9])
    (price,) = quick_pricer(limit_s=25).price_all([product(8)])
    assert (price.time_s, price.provenance.num_runs) == (9, 2)


def test_runs_are_interleaved(monkeypatch):
    order = []
    original = TimedProgram.run
    monkeypatch.setattr(TimedProgram, "run", lambda self: order.append(id(self)) or original(self))
    quick_pricer(slow_factor=1e9).price_all([product(8), product(16)])
    rounds = [order[start : start + 2] for start in range(0, len(order), 2)]
    assert len(rounds) == 5
    assert all(set(round_) == set(order) for round_ in rounds)
    assert len({tuple(round_) for round_ in rounds}) == 2, "in another order now and then"


def test_threads_compile_the_next_batch_meanwhile(monkeypatch):
    events = []
    original = TimedProgram.run

    def run(self):
        events.append("run")
        return original(self)

    class Threads(CompileInThreads):
        def start(self, lowered, *, free_outputs, end_s=math.inf):
            events.append("compile")
            return super().start(lowered, free_outputs=free_outputs, end_s=end_s)

    monkeypatch.setattr(TimedProgram, "run", run)
    monkeypatch.setattr(measure, "choose_compilers", lambda *_, **__: Threads(2))
    with quick_pricer(round_size=4, slow_factor=1e9) as pricer:
        found = pricer.price_all([product(8 * n) for n in range(1, 9)])
    assert all(isinstance(price, Price) for price in found)
    assert events[:8] == ["compile"] * 8
    assert set(events[8:]) == {"run"}


def test_donated_inputs_are_renewed():
    program = make(
        lambda w, g, old: (w - 0.01 * g, old.sum() + w),
        array(64, 8), array(64, 8), array(64, 8),
        ins=(P("x"),) * 3, outs=(P("x"), None), donated=(0, 2),
    )  # fmt: skip
    kept = make(
        lambda w, g, old: (w - 0.01 * g, old.sum() + w), *[array(64, 8)] * 3, ins=(P("x"),) * 3, outs=(P("x"), None)
    )
    donated, whole = quick_pricer().price_all([program, kept])
    assert donated.peak_bytes < whole.peak_bytes


def test_keys_and_loops_and_constraints_have_prices():
    def dropout(x, key):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0)

    def loop(x, w):
        return lax.scan(lambda carry, w: (jnp.tanh(carry @ w), None), x, w)[0]

    key = jax.eval_shape(lambda: jax.random.key(0))
    programs = [
        make(dropout, array(16, 16), key, ins=(P("x"), P())),
        make(loop, array(16, 16), array(3, 16, 16), ins=(P("x"), P())),
        make(lambda x: jnp.sin(x @ x), array(16, 16), constraints=((0, 0, P("x")),)),
        make(lambda i, table: table[i], array(16, dtype=jnp.int32), array(128, 8), ins=(P("x"), P())),
    ]
    assert all(isinstance(price, Price) for price in quick_pricer().price_all(programs))


def test_progress_says_what_is_left():
    seen = []
    quick_pricer(round_size=1).price_all([product(8, "a"), product(16, "b")], on_progress=seen.append)
    assert [(p.done, p.name) for p in seen] == [
        (0, "a"),
        (0, "compiling 1 of 1"),
        (1, "a"),
        (1, "compiling 1 of 1"),
        (2, "b"),
    ]
    assert {(p.total, p.num_cached) for p in seen} == {(2, 0)}
    assert seen[0].left_s is None
    assert seen[2].left_s > 0
    assert seen[-1].left_s == 0


def test_a_comparison_reports_every_round():
    seen = []
    quick_pricer().compare([product(8, "a"), product(16, "b")], on_progress=seen.append)
    names = [p.name for p in seen if p.done == 0]
    assert names[:4] == ["a", "compiling 1 of 2", "compiling 2 of 2", "round 1 of at most 13"]
    assert [p.done for p in seen[-2:]] == [1, 2]


@pytest.mark.slow
def test_another_process_finds_the_prices(tmp_path):
    code = (
        "import jax, sys; jax.config.update('jax_num_cpu_devices', 8); jax.config.update('jax_platforms', 'cpu')\n"
        "from tests.pricing.programs import product, quick_pricer\n"
        "from jaxquard.pricing import PriceCache\n"
        "seen = []\n"
        "print(quick_pricer(PriceCache(sys.argv[1])).price_all([product(16)], on_progress=seen.append)[0])\n"
        "print(seen[-1].num_cached)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(("src", "."))}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = [subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    (first, num_first), (second, num_second) = (text.split("\n")[:2] for text in done)
    assert first == second
    assert (num_first, num_second) == ("0", "1")


class TestCompare:
    def test_all_candidates_run_in_turns_and_more_often(self, monkeypatch):
        order = []

        def run(self):
            order.append(id(self))
            return 1.0

        monkeypatch.setattr(TimedProgram, "run", run)
        prices = quick_pricer(round_size=2).compare([product(8), product(16), product(24)])
        assert [price.provenance.num_runs for price in prices] == [12, 12, 12]
        assert len(order) == 3 * 13
        assert all(len(set(order[start : start + 3])) == 3 for start in range(0, len(order), 3)), "one round of three"

    def test_one_lucky_run_makes_no_winner(self, monkeypatch):
        times_of(monkeypatch, [9] + [1.0] * 12, [9] + [1.2] * 6 + [0.9] + [1.2] * 5)
        first, second = quick_pricer().compare([product(8), product(16)])
        assert second.time_s / first.time_s == pytest.approx(1.2)

    def test_single_prices_are_no_answer_to_it_but_its_own_are(self, monkeypatch, tmp_path):
        pricer = quick_pricer(PriceCache(tmp_path))
        times_of(monkeypatch, [9, 3.0, 3.0, 3.0, 3.0], [9] + [2.0] * 12)
        assert pricer.price(product(8)).time_s == 3.0
        assert [price.time_s for price in pricer.compare([product(8)])] == pytest.approx([2.0])
        assert [price.time_s for price in pricer.compare([product(8)])] == pytest.approx([2.0])
        assert pricer.price(product(8)).time_s == 3.0

    def test_old_times_are_not_mixed_with_new_ones(self, monkeypatch, tmp_path):
        pricer = quick_pricer(PriceCache(tmp_path))
        times_of(monkeypatch, *([9] + [time_s] * 12 for time_s in (3.0, 2.0, 5.0, 6.0, 7.0)))
        first, second, third = product(8), product(16), product(24)
        assert [price.time_s for price in pricer.compare([first, second])] == pytest.approx([3.0, 2.0])
        assert [price.time_s for price in pricer.compare([first, second, third])] == pytest.approx([5.0, 6.0, 7.0]), (
            "all anew"
        )
        monkeypatch.setattr(TimedProgram, "run", None)
        kept = quick_pricer(PriceCache(tmp_path)).compare([third, second, first])
        assert [price.time_s for price in kept] == pytest.approx([7.0, 6.0, 5.0]), "and all are kept"

    def test_nor_are_those_of_two_calls_with_other_candidates(self, monkeypatch, tmp_path):
        pricer = quick_pricer(PriceCache(tmp_path))
        times_of(monkeypatch, *([9] + [time_s] * 12 for time_s in (3.0, 2.0, 5.0, 6.0, 7.0, 8.0)))
        first, second, third = product(8), product(16), product(24)
        pricer.compare([first, second])
        pricer.compare([second, third])
        assert [price.time_s for price in pricer.compare([first, third])] == pytest.approx([7.0, 8.0])
        assert [price.time_s for price in pricer.compare([second, first])] == pytest.approx([2.0, 3.0])

    def test_nor_are_those_of_programs_without_a_cheap_key(self, monkeypatch, tmp_path):
        """They are measured anew each time."""
        monkeypatch.setattr("jaxquard.pricing.program.fingerprint.Fingerprints.key", lambda self, program: None)
        pricer = quick_pricer(PriceCache(tmp_path))
        times_of(monkeypatch, *([9] + [time_s] * 12 for time_s in (3.0, 5.0, 6.0, 8.0, 7.0)))
        assert [price.time_s for price in pricer.compare([product(8)])] == pytest.approx([3.0])
        assert [price.time_s for price in pricer.compare([product(8), product(16)])] == pytest.approx([5.0, 6.0])
        assert [price.time_s for price in pricer.compare([product(16), product(8)])] == pytest.approx([8.0, 7.0])


def test_by_default_there_are_5_warm_ups_and_10_runs(monkeypatch):
    """As in the paper; a machine without noise needs no more."""
    times_s = []
    monkeypatch.setattr(TimedProgram, "run", lambda self, *_: times_s.append(1e-3) or 1e-3)
    with MeasuredPricer(line_mesh(), cache=None, num_compilers=0) as pricer:
        price = pricer.price(product(8))
    assert len(times_s) == 15
    assert price.provenance.num_runs == 10
    assert (price.time_s, price.spread) == (1e-3, 0.0)
