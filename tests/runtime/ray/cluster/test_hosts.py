import os
import signal
import subprocess

import pytest

from jaxquard.runtime.ray.cluster.hosts import kill_process
from tests.runtime.ray.cluster_hosts import LIMIT_S

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("session")]


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_kill(node_id, sleeper):
    assert kill_process(node_id, sleeper.pid, timeout_s=LIMIT_S)
    assert sleeper.wait(LIMIT_S) == -signal.SIGKILL


def test_kill_a_frozen_process(node_id, sleeper):
    os.kill(sleeper.pid, signal.SIGSTOP)
    assert kill_process(node_id, sleeper.pid, timeout_s=LIMIT_S)
    assert sleeper.wait(LIMIT_S) == -signal.SIGKILL


def test_kill_a_process_that_is_gone(node_id, sleeper):
    sleeper.kill()
    sleeper.wait()
    assert kill_process(node_id, sleeper.pid, timeout_s=LIMIT_S)


def test_a_host_that_never_was():
    nowhere = "e" * 56
    assert not kill_process(nowhere, 1, timeout_s=2)


def test_a_host_that_does_not_answer(cluster, sleeper):
    node = next(iter(cluster.worker_nodes))
    raylet = node.all_processes["raylet"][0].process.pid
    os.kill(raylet, signal.SIGSTOP)
    try:
        assert not kill_process(node.node_id, sleeper.pid, timeout_s=1)
    finally:
        os.kill(raylet, signal.SIGCONT)
    assert sleeper.poll() is None
