"""Processes are found below one and by their mark, and the right ones get signals."""

import os
import signal
import subprocess
import sys

import pytest

from jaxquard.runtime.supervisor.process_tree import (
    ProcessId,
    end_all,
    is_living,
    list_descendants,
    list_marked,
    living_process,
    send_signal,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


@pytest.fixture
def sleeper():
    """A child in a session of its own, with a mark."""
    command = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(100)"]
    mark = {**os.environ, "JAXQUARD_TEST_MARK": str(os.getpid())}
    with subprocess.Popen(command, env=mark, start_new_session=True, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture(params=["pidfd", "forbidden", "missing"])
def kernel(request, monkeypatch):
    """Kernels and containers with and without descriptors of processes."""

    def forbidden(pid):
        raise PermissionError(1, "Operation not permitted")

    if request.param == "forbidden":
        monkeypatch.setattr(os, "pidfd_open", forbidden)
    elif request.param == "missing":
        monkeypatch.delattr(os, "pidfd_open")


def test_a_child_is_found(sleeper):
    process = living_process(sleeper.pid)
    assert process in list_descendants(os.getpid())
    assert list_descendants(sleeper.pid) == ()
    assert list_marked("JAXQUARD_TEST_MARK", str(os.getpid())) == (process,)
    assert list_marked("JAXQUARD_TEST_MARK", str(os.getpid())[:-1]) == ()


@pytest.mark.usefixtures("kernel")
def test_a_signal_ends_it(sleeper):
    process = living_process(sleeper.pid)
    send_signal(process, signal.SIGKILL)
    assert sleeper.wait(30) == -signal.SIGKILL
    assert not is_living(process)
    assert living_process(sleeper.pid) is None
    send_signal(process, signal.SIGKILL)  # nobody is hit, and nothing is raised


@pytest.mark.usefixtures("kernel")
def test_a_process_that_has_the_id_of_an_earlier_one_is_left_alone(sleeper):
    process = living_process(sleeper.pid)
    earlier = ProcessId(pid=process.pid, start_ticks=process.start_ticks - 1)
    send_signal(earlier, signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.1)


def test_all_are_ended(sleeper):
    mark = ("JAXQUARD_TEST_MARK", str(os.getpid()))
    assert end_all(lambda: list_marked(*mark), grace_s=0) == ()
    assert sleeper.wait(30) == -signal.SIGKILL
