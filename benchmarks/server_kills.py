"""Kills Ray's servers, and jaxquard's client of them, at random moments of steps with large inputs, on a busy host.

Every time the program must get an `ActorFailed` that names the server, `mesh.restart()` must work, and the next loss
must be equal to the bit. Run it with `python -m benchmarks.server_kills --kills 20 --busy 4 --seed 0`.
"""

import argparse
import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import jax
import numpy as np
import psutil

import jaxquard as jq
from tests.runtime.ray import spinning_step

SERVERS = ("raylet", "gcs_server", "client")
KEY = jax.random.key(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--busy", type=int, default=4, help="busy loops beside it")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    with busy_loops(options.busy):
        for number, (server, failure_s, restart_s) in enumerate(kill_servers(options.kills, seed=options.seed)):
            print(f"{number:3} {server:10} error after {failure_s:5.2f} s, restart {restart_s:5.1f} s", flush=True)


def kill_servers(num_kills: int, *, seed: int) -> Iterator[tuple[str, float, float]]:
    """Kills a server again and again; yields which, the seconds to the error, and those of the restart."""
    generator = random.Random(seed)
    large = np.random.default_rng(seed).normal(size=(3, 50_000, 8)).astype(np.float32)
    with jq.RemoteMesh((2,), runtime="ray", heartbeat_timeout_s=60) as mesh:
        step = mesh.distributed(spinning_step.train_step, donate_argnums=0)

        def one_loss() -> bytes:
            return np.asarray(step(mesh.init(spinning_step.init, KEY), large, 0)[1]).tobytes()

        expected = one_loss()
        for number in range(num_kills):
            server = SERVERS[number % len(SERVERS)]
            failure_s = _fail_once(one_loss, server, after_s=generator.uniform(0, 0.5))
            start_s = time.monotonic()
            if mesh.restart() != (0, 1):
                raise AssertionError("all actors are lost with Ray")
            restart_s = time.monotonic() - start_s
            if one_loss() != expected:
                raise AssertionError(f"the loss after kill {number} ({server}) differs")
            yield server, failure_s, restart_s


def _fail_once(one_loss, server: str, *, after_s: float) -> float:
    """Runs steps until the death of a server ends one; returns the seconds between the two."""
    victim, killed_s = find_server(server), float("nan")

    def kill() -> None:
        nonlocal killed_s
        killed_s = time.monotonic()
        victim.kill()

    timer = threading.Timer(after_s, kill)
    timer.start()
    try:
        while True:
            one_loss()
    except jq.errors.ActorFailed as error:
        failure_s = time.monotonic() - killed_s
        timer.join()
        if str(victim.pid) not in str(error):
            raise AssertionError(f"it was the {server} (process {victim.pid}) that died") from error
        return failure_s


def find_server(name: str) -> psutil.Process:
    """Finds the newest server of a kind below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            is_client = any("ray.client.serve" in word for word in process.cmdline())
            if (is_client and name == "client") or process.name() == name:
                found.append(process)
    return max(found, key=lambda process: process.create_time())


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keeps the cores busy with a number of loops."""
    loops = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    main()
