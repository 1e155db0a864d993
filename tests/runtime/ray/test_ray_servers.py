"""Ray's own servers die, or an actor does while others are restarted: an error in time, and training can go on."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxquard as jq
from benchmarks.server_kills import busy_loops, kill_servers
from jaxquard.errors import ActorFailed
from jaxquard.runtime.ray.client.ray_commands import WorkerGone
from jaxquard.runtime.ray.cluster.client_process import ClientProcess, RayLost
from jaxquard.runtime.ray.controller.worker_group import WorkerGroup
from tests.runtime.ray import spinning_step
from tests.runtime.ray.processes import kill, name_of, process_id, wait_until

pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.ray
SLOW = pytest.mark.slow

ROOT = Path(__file__).parents[3]
KEY = jax.random.key(0)
# Ray's library ends the process that has it after 14 s, or at its next access to the object store.
PROMPT_S = 30
LONG = 10_000_000


@pytest.fixture(scope="module")
def strangers():
    """The processes of other tests, whose Ray may still run."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.fixture(scope="module")
def mesh(strangers):
    with jq.RemoteMesh((2,), runtime="ray", heartbeat_timeout_s=30) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def step(mesh):
    return mesh.distributed(spinning_step.train_step, donate_argnums=0)


@pytest.fixture(scope="module")
def first_loss(mesh, step):
    return loss_of(mesh, step)


def loss_of(mesh, step):
    return np.asarray(step(mesh.init(spinning_step.init, KEY), spinning_step.batch(), 0)[1]).tobytes()


def find_server(name):
    """The server of the newest Ray: other tests may have one too."""
    found = [process for process in psutil.Process().children(recursive=True) if name_of(process) == name]
    return max(found, key=lambda process: process.create_time())


def failure_of(function):
    start_s = time.monotonic()
    with pytest.raises(ActorFailed) as caught:
        function()
    assert time.monotonic() - start_s < PROMPT_S
    assert caught.value.is_lost
    return str(caught.value)


@pytest.mark.parametrize("server", ["raylet", pytest.param("gcs_server", marks=SLOW)])
def test_a_server_dies_in_a_step(strangers, mesh, step, first_loss, server):
    state = mesh.init(spinning_step.init, KEY)
    _, loss = step(state, spinning_step.batch(), LONG)
    victim = find_server(server)
    family = [process for process in psutil.Process().children(recursive=True) if process.pid not in strangers]
    victim.kill()
    message = failure_of(lambda: float(loss))
    assert f"is lost with all others, as Ray's {server} (process {victim.pid}) has died" in message
    assert message.endswith("Its state is lost: call mesh.restart(), and restore a checkpoint.")
    failure_of(lambda: step(mesh.init(spinning_step.init, KEY), spinning_step.batch(), 0))
    failure_of(lambda: mesh.distributed(lambda x: x + 1)(np.ones(2)))
    assert mesh.restart() == (0, 1)
    assert mesh.restart() == ()
    assert loss_of(mesh, step) == first_loss
    _, alive = psutil.wait_procs(family, timeout=120)
    assert not alive


def test_a_restart_right_after_a_kill_finds_it(mesh, step, first_loss):
    kill(mesh, 1)
    assert mesh.restart() == (1,)
    assert loss_of(mesh, step) == first_loss


def test_the_raylet_dies_during_a_large_write(mesh, first_loss, step):
    """Ray's library ends the process that writes."""
    large, client, is_writing = np.ones(4_000_000), mesh.engine.group.client, threading.Event()

    def write():
        while True:
            client.share(large)
            is_writing.set()

    def kill_raylet():
        is_writing.wait(60)
        find_server("raylet").kill()

    killer = threading.Thread(target=kill_raylet)
    killer.start()
    try:
        message = failure_of(write)
    finally:
        killer.join()
    assert "Ray's raylet" in message
    assert mesh.restart() == (0, 1)
    assert loss_of(mesh, step) == first_loss


@SLOW
def test_an_access_to_the_object_store_right_after_the_raylet_died(mesh, step):
    """The next one would end the process that has it."""
    large = np.ones((3, 20_000, 8), np.float32)

    def run():
        return np.asarray(step(mesh.init(spinning_step.init, KEY), large, 0)[1])

    before, raylet = run(), find_server("raylet")
    raylet.kill()
    wait_until(lambda: raylet.status() == psutil.STATUS_ZOMBIE)
    failure_of(run)
    assert mesh.restart() == (0, 1)
    np.testing.assert_array_equal(run(), before)


@SLOW
@pytest.mark.parametrize("server", ["raylet", "gcs_server"])
def test_a_server_is_stopped(mesh, step, first_loss, server):
    _, loss = step(mesh.init(spinning_step.init, KEY), spinning_step.batch(), LONG)
    find_server(server).suspend()
    with pytest.raises(ActorFailed, match="has been stopped for 10 s"):
        float(loss)
    assert mesh.restart() == (0, 1)
    assert loss_of(mesh, step) == first_loss


@SLOW
def test_kills_during_a_restart(mesh, step, first_loss, monkeypatch):
    """The actor that starts, the other one, and Ray itself."""
    find_coordinators, harms = WorkerGroup._coordinators, []

    def harm_and_find(group, fresh):
        """The processes are up now, and JAX is not."""
        if harms:
            harms.pop()()
        return find_coordinators(group, fresh)

    monkeypatch.setattr(WorkerGroup, "_coordinators", harm_and_find)
    for harm, lost in (
        (lambda: kill(mesh, 1), {(0, 1)}),
        (lambda: find_server("raylet").kill(), {(0, 1)}),
        (lambda: [process.kill() for process in children_of(find_server("raylet"), "Worker")], {(0,), (0, 1)}),
    ):
        harms.append(harm)
        kill(mesh, 0)
        assert mesh.restart() in lost
        assert not harms
        mesh.restart()
        assert loss_of(mesh, step) == first_loss


def children_of(process, name):
    return [child for child in process.children() if name in name_of(child)]


@SLOW
def test_kills_at_random_moments_of_a_restart(mesh, step, first_loss):
    generator = np.random.default_rng(0)
    for delay_s in generator.uniform(0, 3, size=4):
        kill(mesh, 0)
        timer = threading.Timer(delay_s, lambda: os.kill(process_id(mesh, 1), signal.SIGKILL))
        timer.start()
        assert 0 in mesh.restart()
        timer.join()
        mesh.restart()
        assert loss_of(mesh, step) == first_loss


@SLOW
def test_twenty_kills_on_a_busy_host():
    with busy_loops(4):
        found = [server for server, _, _ in kill_servers(20, seed=0)]
    assert len(found) == 20


PROGRAM = """
import atexit, sys
import jax
jax.config.update("jax_platforms", "cpu")
import psutil
import jaxquard as jq
from tests.runtime.ray import spinning_step

atexit.register(print, "atexit", flush=True)
mesh = jq.RemoteMesh((2,), runtime="ray", heartbeat_timeout_s=30)
step = mesh.distributed(spinning_step.train_step, donate_argnums=0)
_, loss = step(mesh.init(spinning_step.init, jax.random.key(0)), spinning_step.batch(), 10_000_000)
for process in psutil.Process().children(recursive=True):
    if process.name() == sys.argv[1]:
        process.kill()
try:
    float(loss)
finally:
    print("finally", flush=True)
"""


@SLOW
@pytest.mark.parametrize("server", ["raylet", "gcs_server"])
def test_a_program_that_does_not_restart_ends_with_the_error(server):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 1
    assert done.stdout == "finally\natexit\n"
    assert done.stderr.rstrip().splitlines()[-1].startswith("jaxquard.errors.ActorFailed: actor 0 on "), done.stderr


def test_calls_are_refused_when_ray_is_gone():
    client = ClientProcess()
    try:
        waiting = client.call(1, "heartbeat", ())
        client.lose("the server has died")
        with pytest.raises((RayLost, WorkerGone)):
            waiting.value()
        with pytest.raises(RayLost, match="the server has died"):
            client.call(1, "heartbeat", ())
        with pytest.raises(RayLost, match="the server has died"):
            client.request("list_nodes")
    finally:
        client.close()
