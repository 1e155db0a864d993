"""Processes that answer requests: what becomes of those that end, stall or do not start."""

import os
import subprocess
import time
from concurrent.futures import CancelledError

import pytest

from jaxquard.pricing import CompilePricer, FailureReason
from jaxquard.pricing.end_of_time import OutOfTimeError, StalledError
from jaxquard.pricing.target.compile_pricer import default_num_compilers
from jaxquard.pricing.workers.worker import NotStartedError, PricingProcess, WorkerEndedError, worker_environment
from jaxquard.pricing.workers.worker_pool import WorkerPool
from tests.pricing.target.test_compile_pricer import LINE, product

# A worker without JAX: it evaluates what it is asked.
ECHO = """
import sys, time, os
from jaxquard.pricing.workers.serve import reply, serve
sys.stderr.write("begun\\n")
serve(int(sys.argv[1]), lambda: ("hello", lambda text: [reply(lambda: eval(text))]))
"""


@pytest.fixture
def start(tmp_path):
    (tmp_path / "echo_worker.py").write_text(ECHO)
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    environment = worker_environment({**os.environ, "PYTHONPATH": path})
    return lambda: PricingProcess("echo_worker", (), environment=environment, name="the echo")


@pytest.fixture
def pool(start):
    found = WorkerPool(start, num_workers=1, limit_s=60)
    yield found
    found.stop()


def ask(pool, text, **more):
    return pool.submit(text, end_s=more.get("end_s", float("inf"))).result()


def test_requests_are_answered_by_one_process(pool):
    first, _ = ask(pool, "os.getpid()")
    second, log = ask(pool, "sys.stderr.write('said\\n') and os.getpid()")
    assert first.value == second.value != os.getpid()
    assert log == b"said\n"
    assert ask(pool, "1 / 0")[0].error == "division by zero"


def test_one_that_ends_is_replaced(pool):
    with pytest.raises(WorkerEndedError, match=r"the echo ended \(exit code 3\): goodbye"):
        ask(pool, "sys.stderr.write('goodbye\\n') and os._exit(3)")
    assert ask(pool, "1 + 1")[0].value == 2


def test_one_that_takes_too_long_is_ended(start):
    pool = WorkerPool(start, num_workers=1, limit_s=0.01)
    with pytest.raises(StalledError, match=r"no answer from the echo within 0\.01 s"):
        ask(pool, "time.sleep(60)")
    pool.stop()


def test_at_the_end_of_the_time_it_is_ended(pool):
    ask(pool, "1")
    start_s = time.monotonic()
    with pytest.raises(OutOfTimeError):
        ask(pool, "time.sleep(60)", end_s=start_s + 0.2)
    assert time.monotonic() - start_s < 30
    assert ask(pool, "2")[0].value == 2


def test_where_none_starts_there_is_one_warning(start, monkeypatch, caplog):
    def refuse(*args, **kwargs):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    pool = WorkerPool(start, num_workers=2, limit_s=60)
    for _ in range(3):
        with pytest.raises(NotStartedError, match="no process could be started"):
            ask(pool, "1")
    assert len(caplog.records) == 1
    pool.stop()


def test_one_that_says_what_it_lacks(tmp_path, start):
    (tmp_path / "echo_worker.py").write_text(ECHO.replace('("hello"', "(1 / 0"))
    worker = start()
    with pytest.raises(NotStartedError, match="division by zero"):
        worker.greet(limit_s=60)
    worker.kill()


def test_stopping_ends_the_processes_and_what_waits(start):
    pool = WorkerPool(start, num_workers=1, limit_s=120)
    ask(pool, "1")
    (worker,) = pool._workers
    waiting = [pool.submit("time.sleep(100)", end_s=float("inf")) for _ in range(2)]
    time.sleep(0.2)
    pool.stop()
    assert worker._process.poll() is not None
    for future in waiting:
        with pytest.raises((WorkerEndedError, CancelledError)):
            future.result(60)


def test_a_compiler_that_cannot_start_is_a_failure(monkeypatch):
    def refuse(*args, **kwargs):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with CompilePricer("cpu-8", LINE, cache=None, num_compilers=1) as pricer:
        (failure,) = pricer.price_all([product()])
    assert failure.reason is FailureReason.NO_COMPILATION
    assert "no process could be started" in failure.message


def test_there_are_no_more_than_the_memory_has_room_for():
    assert 1 <= default_num_compilers(10**6) < 10**6
    assert default_num_compilers(1) == 1
