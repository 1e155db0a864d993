"""Processes that compile for a target: what is asked of them when one ends, stalls or does not start."""

import pytest
from jax.sharding import PartitionSpec as P

from jaxquard.cluster import load_cluster
from jaxquard.pricing import CompilePricer, FailureReason
from jaxquard.pricing.compile import compile_processes
from jaxquard.pricing.target.compiled_program import CompileRequest
from jaxquard.pricing.target.find_target import find_target
from jaxquard.pricing.target.target_processes import TargetProcesses, default_num_compilers
from tests.pricing.target.test_compile_pricer import LINE, product

TARGET = find_target(load_cluster("cpu-8"), (8,))


def request(code=b"no module"):
    return CompileRequest(code=code, target=TARGET, num_inputs=1, free_outputs=(False,), compiler_options={})


@pytest.fixture
def processes():
    found = TargetProcesses(TARGET, num_compilers=1, limit_s=300)
    yield found
    found.stop()


@pytest.mark.slow
def test_one_that_ends_is_replaced(processes):
    """The first answer is of a process that is killed before it is asked again, the last of another process."""
    (first,) = processes.compile([request()])
    assert isinstance(first.result(), str)
    (process,) = processes._processes
    process._process.kill()
    (second,) = processes.compile([request()])
    assert "the compiler ended its process" in second.result()
    assert processes._processes == []


def test_one_that_cannot_start_is_a_failure(monkeypatch):
    def refuse(*args, **kwargs):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(compile_processes.subprocess, "Popen", refuse)
    with CompilePricer("cpu-8", LINE, cache=None, num_compilers=1) as pricer:
        (failure,) = pricer.price_all([product(contracted=P())])
    assert failure.reason is FailureReason.NO_COMPILATION
    assert "no process could be started to compile in" in failure.message


@pytest.mark.slow
def test_one_that_takes_too_long_is_ended():
    processes = TargetProcesses(TARGET, num_compilers=1, limit_s=0.01)
    (answer,) = processes.compile([request()])
    assert answer.result() == "not compiled within 0.01 s"
    processes.stop()


def test_there_are_no_more_than_the_memory_has_room_for():
    assert 1 <= default_num_compilers(10**6) < 10**6
    assert default_num_compilers(1) == 1
