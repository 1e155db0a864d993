"""The client process: what it imports, what it answers, and when it ends."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from jaxquard.errors import MeshError
from jaxquard.runtime.ray.client.ray_commands import WorkerGone
from jaxquard.runtime.ray.cluster.client_process import ClientProcess
from tests.runtime.ray.processes import wait_until

pytest.importorskip("ray")


def test_it_does_not_import_jax():
    text = (
        "import sys; import jaxquard.runtime.ray.client.serve, jaxquard.runtime.ray.client.host_functions; "
        "print(sorted({'jax', 'ray'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=240, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.ray
def test_commands_that_fail_and_workers_that_are_not_there():
    client = ClientProcess()
    try:
        with pytest.raises(WorkerGone, match="it was ended"):
            client.call(1, "heartbeat", ()).value()
        with pytest.raises(MeshError, match=r"^Ray could not do what was asked \(await_reserved\): KeyError: 5$"):
            client.request("await_reserved", 5, 1.0)
    finally:
        client.close()
        client.close()
    assert not psutil.pid_exists(client.pid)
    with pytest.raises(MeshError, match="the mesh is closed"):
        client.request("list_nodes")


PROGRAM = """
import os, time
from jaxquard.runtime.ray.cluster.client_process import ClientProcess
client = ClientProcess()
if os.fork() == 0:  # It holds the pipe open.
    time.sleep(600)
    os._exit(0)
print(client.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
@pytest.mark.ray
def test_it_ends_with_its_program_also_if_a_fork_of_that_lives():
    program = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        client = int(program.stdout.readline())
        wait_until(lambda: not psutil.pid_exists(client))
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.stdout.close()
        program.wait()
