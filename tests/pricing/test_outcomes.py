"""The breakdown of a pricer's time."""

import time

import pytest

from jaxquard.pricing import PriceCache, TimeBreakdown
from jaxquard.pricing.compile.compilers import CompileHere, CompileInThreads, CompileProcesses
from jaxquard.pricing.measure.runs.timed_program import TimedProgram
from jaxquard.pricing.program.lower_program import lower_program
from tests.pricing.programs import line_mesh, product, quick_pricer


class Slow:
    """Something lowered that takes its time."""

    def compile(self):
        time.sleep(0.05)
        return "compiled"


def test_nothing_is_spent_at_first():
    assert quick_pricer().time_breakdown == TimeBreakdown(lowering_s=0, compiling_s=0, running_s=0, compile_work_s=0)


def test_the_parts_add_up_to_what_the_caller_waits():
    """Little is left over: in the best of a few tries, since a machine may pause between the parts."""
    metered, worked = [], []
    for _ in range(3):
        pricer = quick_pricer()
        start_s = time.perf_counter()
        pricer.price_all([product(64), product(128)])
        total_s = time.perf_counter() - start_s
        spent = pricer.time_breakdown
        parts_s = spent.lowering_s + spent.compiling_s + spent.running_s
        assert parts_s <= total_s
        assert min(spent.lowering_s, spent.compiling_s, spent.running_s) > 0
        # One after the other and here: the work is what is waited for.
        assert spent.compile_work_s <= spent.compiling_s
        metered.append(parts_s / total_s)
        worked.append(spent.compile_work_s / spent.compiling_s)
    assert max(metered) > 0.7
    assert max(worked) > 0.9


def test_calls_add_up_and_known_prices_take_nothing(tmp_path):
    pricer = quick_pricer(PriceCache(tmp_path))
    pricer.price(product(16))
    first = pricer.time_breakdown
    pricer.price(product(16))
    assert pricer.time_breakdown == first
    pricer.price(product(24))
    assert pricer.time_breakdown.lowering_s > first.lowering_s
    assert pricer.time_breakdown.running_s > first.running_s


def test_what_fails_is_counted_too(monkeypatch):
    monkeypatch.setattr(TimedProgram, "run", lambda self: time.sleep(0.3) or 1 / 0)
    pricer = quick_pricer()
    pricer.price_all([product(16)])
    assert pricer.time_breakdown.running_s >= 0.3


@pytest.mark.parametrize("kind", [CompileHere, lambda: CompileInThreads(2)])
def test_compilers_report_their_work(kind):
    compilers = kind()
    waiting = [compilers.start(Slow(), free_outputs=()) for _ in range(4)]
    compiled = [finish() for finish in waiting]
    compilers.stop()
    assert [one.executable for one in compiled] == ["compiled"] * 4
    assert all(0.05 <= one.work_s < 60 for one in compiled)


@pytest.mark.slow
def test_processes_report_their_work_without_their_start():
    compilers = CompileProcesses(line_mesh(), num_compilers=1, limit_s=120)
    lowered = lower_program(product(8), mesh=line_mesh())
    start_s = time.perf_counter()
    work_s = compilers.start(lowered, free_outputs=(False,))().work_s
    waited_s = time.perf_counter() - start_s
    compilers.stop()
    # A process imports JAX before it compiles.
    assert 0.001 < work_s < waited_s - 0.2


@pytest.mark.slow
def test_the_work_of_processes_is_counted():
    with quick_pricer(num_compilers=2, slow_factor=1e9) as pricer:
        start_s = time.perf_counter()
        pricer.price_all([product(8 * n, f"p{n}") for n in range(1, 9)])
        total_s = time.perf_counter() - start_s
    assert 0.01 < pricer.time_breakdown.compile_work_s < 2 * total_s
