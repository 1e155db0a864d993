"""Compilers in processes of their own."""

import os
import signal
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import PartitionSpec as P

from jaxquard.hlo import parse_module
from jaxquard.pricing import FailureReason, Price
from jaxquard.pricing.compile.compilers import CompileProcesses
from jaxquard.pricing.program.lower_program import lower_program
from jaxquard.pricing.workers.worker import WorkerEndedError
from tests.pricing.programs import array, line_mesh, make, product, quick_pricer

# Starts processes.
pytestmark = pytest.mark.ray


@pytest.fixture
def compilers():
    found = CompileProcesses(line_mesh(), num_compilers=1, limit_s=120)
    yield found
    found.stop()


@pytest.fixture
def hits():
    events: list[str] = []
    jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
    yield lambda: sum("cache_hits" in name for name in events)
    jax.monitoring.clear_event_listeners()


def start(compilers, program):
    lowered = lower_program(program, mesh=line_mesh())
    finish = compilers.start(lowered, free_outputs=tuple(spec is None for spec in program.out_specs))
    return lambda: finish().executable


def opcodes(executable):
    return [operation.opcode for operation in parse_module(executable.as_text()).main.operations]


def programs():
    key = jax.eval_shape(lambda: jax.random.key(0))
    yield product(32)
    yield make(jnp.matmul, array(64, 64), array(64, 64), ins=(P(None, "x"), P("x")))
    yield make(lambda w, g: w - g, *[array(64, 64)] * 2, ins=(P("x"),) * 2, outs=(P("x"),), donated=(0,))
    yield make(lambda x, key: jax.random.bernoulli(key, 0.5, x.shape) * x, array(16, 16), key, ins=(P("x"), P()))
    yield make(lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x @ x), array(16, 16), ins=(P("x"),))
    yield make(lambda x: jnp.sin(x @ x), array(16, 16), constraints=((0, 0, P("x")),))


def test_what_a_process_compiles_is_found_here(compilers, hits):
    before = jax.config.jax_compilation_cache_dir
    for number, program in enumerate(programs()):
        loaded = start(compilers, program)()
        assert hits() == number + 1
        compiled = lower_program(program, mesh=line_mesh()).compile()
        assert str(loaded.memory_analysis()) == str(compiled.memory_analysis())
        assert opcodes(loaded) == opcodes(compiled)
    assert jax.config.jax_compilation_cache_dir == before


def test_what_calls_back_is_compiled_here(compilers, hits):
    program = make(lambda x: jax.pure_callback(lambda x: x + 1, array(4), x), array(4))
    (result,) = start(compilers, program)()(jnp.ones(4))
    assert result.tolist() == [2.0] * 4
    assert hits() == 0


def test_what_the_user_shards_is_compiled_here(compilers, hits):
    """The rule is a function of this process."""

    @custom_partitioning
    def twice(x):
        return x * 2

    twice.def_partition(
        lambda mesh, types, _: (mesh, lambda x: x * 2, types[0].sharding, (types[0].sharding,)),
        sharding_rule="i -> i",
    )
    (result,) = start(compilers, make(twice, array(8), ins=(P("x"),)))()(jnp.ones(8))
    assert result.tolist() == [2.0] * 8
    assert hits() == 0


def test_prices_are_the_same_kind_of_thing():
    many = [product(8 * n, f"p{n}") for n in range(1, 9)]
    with quick_pricer(num_compilers=2, slow_factor=1e9) as apart:
        found = apart.price_all(many)
    expected = quick_pricer(slow_factor=1e9).price_all(many)
    assert all(isinstance(price, Price) for price in found)
    assert [price.peak_bytes for price in found] == [price.peak_bytes for price in expected]


def test_a_crash_takes_one_program_with_it(compilers):
    start(compilers, product(8))()
    (worker,) = compilers._pool._workers
    os.kill(worker._process.pid, signal.SIGKILL)
    with pytest.raises(WorkerEndedError, match=r"the compiler's process ended \(exit code -9\)"):
        start(compilers, product(16))()
    start(compilers, product(24))()


def test_the_end_of_the_log_of_a_process_is_shown(compilers, monkeypatch):
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    start(compilers, product(8))()
    (worker,) = compilers._pool._workers
    os.kill(worker._process.pid, signal.SIGABRT)
    with pytest.raises(WorkerEndedError, match=r"the compiler's process ended \(exit code -6\): \S+"):
        start(compilers, product(16))()


class TestModulesOfTheSameName:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "jaxlib.py").write_text("raise RuntimeError('not the jaxlib that was meant')")
        return tmp_path

    def test_in_the_working_folder_do_not_matter(self, compilers, hits, folder, monkeypatch):
        monkeypatch.delenv("PYTHONPATH", raising=False)  # Which may name the working folder.
        monkeypatch.chdir(folder)
        start(compilers, product(8))()
        assert hits() == 1

    def test_on_the_path_end_the_processes_so_we_compile_here(self, compilers, hits, folder, monkeypatch, caplog):
        monkeypatch.setenv("PYTHONPATH", str(folder))
        ones = jnp.ones((8, 8))
        for _ in range(2):
            (result,) = start(compilers, product(8))()(ones, ones)
            np.testing.assert_array_equal(result, 8 * ones)
        assert hits() == 0
        assert compilers._pool._workers == []
        (record,) = caplog.records
        assert record.message == (
            "no more processes: the compiler's process ended (exit code 1): RuntimeError: not the jaxlib that was meant"
        )


class TestNoMoreProcesses:
    @pytest.fixture
    def full(self, monkeypatch):
        def refuse(*_, **__):
            raise BlockingIOError(11, "Resource temporarily unavailable")

        return lambda: monkeypatch.setattr(subprocess, "Popen", refuse)

    def test_we_compile_here(self, compilers, hits, full, caplog):
        full()
        ones = jnp.ones((8, 8))
        for _ in range(2):
            (result,) = start(compilers, product(8))()(ones, ones)
            np.testing.assert_array_equal(result, 8 * ones)
        assert hits() == 0
        assert [record.message for record in caplog.records] == [
            "no more processes: no process could be started ([Errno 11] Resource temporarily unavailable)"
        ]
        folder = compilers._folder.name
        compilers.stop()
        assert not os.path.exists(folder)

    def test_one_that_died_is_not_replaced(self, compilers, hits, full):
        start(compilers, product(8))()
        (worker,) = compilers._pool._workers
        full()
        os.kill(worker._process.pid, signal.SIGKILL)
        with pytest.raises(WorkerEndedError, match="the compiler's process ended"):
            start(compilers, product(16))()
        start(compilers, product(24))()
        assert hits() == 1


def test_a_stalled_compiler_is_given_up():
    stalled = CompileProcesses(line_mesh(), num_compilers=1, limit_s=0.01)
    with pytest.raises(RuntimeError, match=r"no answer from the compiler's process within 0\.01 s"):
        start(stalled, product(8))()
    stalled.stop()


def test_a_stalled_compiler_is_a_failure_of_its_program():
    with quick_pricer(num_compilers=2, compile_limit_s=0.01) as pricer:
        found = pricer.price_all([product(8 * n) for n in range(1, 9)])
    assert {failure.reason for failure in found} == {FailureReason.TOO_SLOW}


def test_stopping_ends_the_processes(compilers):
    start(compilers, product(8))()
    (worker,) = compilers._pool._workers
    folder, process = compilers._folder.name, worker._process
    start_s = time.monotonic()
    compilers.stop()
    assert process.poll() is not None
    assert not os.path.exists(folder)
    assert time.monotonic() - start_s < 60
