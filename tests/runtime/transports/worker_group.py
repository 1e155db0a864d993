"""Processes that play actors for the tests of transports: started once, then given jobs.

A job is a function of a module, called in every process with its `WorkerProcess` and the same arguments; all run at
once, and the results come back in order. Four processes with four devices each serve as four actors or as
two actors of two processes, and one transport after the other.
"""

import faulthandler
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxquard.runtime.transports.open_transport import TRANSPORTS
from jaxquard.runtime.transports.peers.secret import MeshSecret, new_mesh_secret
from jaxquard.runtime.transports.protocol import Transport
from tests.free_port import free_port
from tests.runtime.forked_processes import context

NUM_PROCESSES, NUM_DEVICES, LIMIT_S = 4, 4, 100


@dataclass(slots=True, kw_only=True)
class WorkerProcess:
    """One of the processes, as the jobs see it; they may keep things in `store`."""

    number: int
    transport_name: str = ""
    processes_per_actor: int = 1
    transport: Transport = None  # type: ignore[assignment]
    store: dict[str, Any] = field(default_factory=dict)

    @property
    def actor(self) -> int:
        return self.number // self.processes_per_actor

    def mesh(self, shape: tuple[int, ...]) -> Mesh:
        """This actor's mesh, with axes x, y, over the first devices of each of its processes."""
        own = jax.process_index()
        first = own - self.number % self.processes_per_actor
        each = prod(shape) // self.processes_per_actor
        devices = [
            device
            for process in range(first, first + self.processes_per_actor)
            for device in [device for device in jax.devices() if device.process_index == process][:each]
        ]
        return Mesh(np.array(devices).reshape(shape), ("x", "y")[: len(shape)])


class WorkerGroup:
    """The processes, in runs of `processes_per_cluster` that one `jax.distributed` joins, or none if that is 0."""

    def __init__(self, *, num_processes: int = NUM_PROCESSES, processes_per_cluster: int) -> None:
        ports = [free_port() for _ in range(num_processes)]
        self.processes, self.pipes = [], []
        for number in range(num_processes):
            ours, theirs = context.Pipe()
            args = (number, processes_per_cluster, ports, theirs)
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)
        self.transport = ""
        self._open = None
        self.secret = new_mesh_secret()

    def run(self, job: Callable[..., Any], *args: Any) -> list[Any]:
        for number in range(len(self.pipes)):
            self.start(number, job, *args)
        replies = [self.read(number) for number in range(len(self.pipes))]
        failed = [f"process {number}:\n{text}" for number, (_, text) in enumerate(replies) if text]
        assert not failed, "\n".join(failed)
        return [value for value, _ in replies]

    def open(self, *, processes_per_actor: int = 1, window_messages: int = 4, window_bytes: int = 2**28) -> None:
        """Connects anew, unless it is connected in this way already."""
        wanted = (self.transport, processes_per_actor, window_messages, window_bytes)
        if self._open != wanted:
            addresses = self.run(open_transport, self.secret, *wanted)
            self.run(connect, addresses)
            self._open = wanted

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.join()
            pipe.close()

    def start(self, number: int, job: Callable[..., Any], *args: Any) -> None:
        self.pipes[number].send((job, args))

    def read(self, number: int) -> tuple[Any, str]:
        if not self.pipes[number].poll(LIMIT_S):
            return None, f"gave no answer within {LIMIT_S} s"
        try:
            return self.pipes[number].recv()
        except EOFError:
            return None, "has ended"


def open_transport(
    worker: WorkerProcess,
    secret: MeshSecret,
    transport: str,
    processes_per_actor: int,
    window_messages: int,
    window_bytes: int,
) -> str:
    if worker.transport is not None:
        worker.transport.close()
    worker.transport_name, worker.processes_per_actor = transport, processes_per_actor
    name, _, way = transport.partition(" over ")
    worker.transport = TRANSPORTS[name](
        jax.local_devices(),
        actor=worker.actor,
        secret=secret,
        on_network=way == "TLS",
        window_messages=window_messages,
        window_bytes=window_bytes,
    )
    return worker.transport.address


def connect(worker: WorkerProcess, addresses: list[str]) -> None:
    count = worker.processes_per_actor
    if worker.transport_name.endswith(" over TLS"):
        # As a peer on another host would see them: the sockets are out of reach.
        own = worker.transport.address
        addresses = [address if address == own else address.partition(",unix:")[0] for address in addresses]
    worker.transport.connect(
        {actor: tuple(addresses[actor * count : (actor + 1) * count]) for actor in range(len(addresses) // count)}
    )


def _serve(number: int, processes_per_cluster: int, ports: list[int], pipe: Any) -> None:
    faulthandler.enable()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    if processes_per_cluster:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        process_id = number % processes_per_cluster
        address = f"127.0.0.1:{ports[number - process_id]}"
        jax.distributed.initialize(address, num_processes=processes_per_cluster, process_id=process_id)
    worker = WorkerProcess(number=number)
    while True:
        try:
            job, args = pipe.recv()
        except EOFError:
            os._exit(0)
        faulthandler.dump_traceback_later(LIMIT_S - 10, exit=True)
        try:
            pipe.send((job(worker, *args), ""))
        except BaseException:
            pipe.send((None, traceback.format_exc()))
        faulthandler.cancel_dump_traceback_later()
