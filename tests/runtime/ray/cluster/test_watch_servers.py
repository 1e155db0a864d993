"""Servers that die, are stopped or do not answer."""

import os
import queue
import signal
import socket
import subprocess
import sys

import pytest

from jaxquard.runtime.ray.client.addresses import parse_address
from jaxquard.runtime.ray.cluster import watch_servers
from jaxquard.runtime.ray.cluster.watch_servers import ServerWatch, find_listener, find_process

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
LIMIT_S = 30


@pytest.fixture
def server():
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


def watch(processes=(), **options):
    lost = queue.SimpleQueue()
    return ServerWatch(processes, lost.put, **options), lost


def test_a_server_that_dies(server):
    watching, lost = watch([find_process("the raylet", server.pid)])
    assert watching.find_loss() == ""
    server.kill()
    expected = f"the raylet (process {server.pid}) has died"
    assert lost.get(timeout=LIMIT_S) == expected
    assert watching.find_loss() == expected
    assert watching.close()
    assert lost.empty()


@pytest.mark.parametrize("may_end", [True, False])
def test_a_server_that_is_stopped(server, monkeypatch, may_end):
    monkeypatch.setattr(watch_servers, "_MAX_STOPPED_S", 0.3)
    raylet = find_process("the raylet", server.pid)
    watching, lost = watch(own=[raylet]) if may_end else watch([raylet])
    os.kill(server.pid, signal.SIGSTOP)
    if may_end:
        assert lost.get(timeout=LIMIT_S) == f"the raylet (process {server.pid}) has been stopped for 0.3 s"
    else:
        with pytest.raises(queue.Empty):
            lost.get(timeout=1)
    watching.close()


def test_a_control_server_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(watch_servers, "_PROBE_S", 0.1)
    monkeypatch.setattr(watch_servers, "_MAX_UNREACHABLE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = parse_address(f"127.0.0.1:{listener.getsockname()[1]}")
        watching, lost = watch(control_server=address)
        with pytest.raises(queue.Empty):
            lost.get(timeout=1)
    assert lost.get(timeout=LIMIT_S) == f"the control server at {address} has not answered for 0.5 s"
    watching.close()


def test_who_listens_at_a_socket(tmp_path):
    path = str(tmp_path / "socket")
    assert find_listener("the raylet", path) is None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        found = find_listener("the raylet", path)
    assert found == find_process("the raylet", os.getpid())
