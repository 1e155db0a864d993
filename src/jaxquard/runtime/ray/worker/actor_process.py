"""Everything that a process of an actor does, without Ray: `client.ray_actor` makes it a Ray actor.

Its devices hold the state, in `cells` by number; the controller has the numbers. All that changes cells happens in
turns (`turns`); looking at them, compiling and heartbeats do not wait for turns.
"""

import logging
import os
import socket
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxquard.errors import DeletedArrayError
from jaxquard.runtime.checkpoint.files.digests import Checksums
from jaxquard.runtime.checkpoint.files.read_arrays import RowsWanted, rows_job
from jaxquard.runtime.checkpoint.files.read_pieces import Checkpoint, read_jobs
from jaxquard.runtime.checkpoint.files.write_pieces import PieceTable, PieceWriting, write_pieces
from jaxquard.runtime.program.actor import Actor
from jaxquard.runtime.program.compile_calls import Site
from jaxquard.runtime.ray.messages import (
    Heartbeat,
    ProgramOrder,
    Shard,
    StepOrder,
    StepReply,
    Turn,
    WorkerConfig,
    WorkerInfo,
)
from jaxquard.runtime.ray.worker.channels import Unacknowledged
from jaxquard.runtime.ray.worker.jax_process import (
    apply_settings,
    configure_jax,
    free_address,
    join_processes,
    make_actor_mesh,
)
from jaxquard.runtime.ray.worker.run_step_order import run_step_order
from jaxquard.runtime.ray.worker.self_report import ActivityFile, count_oom_kills, own_boot, tail_reader
from jaxquard.runtime.ray.worker.turns import TurnOver, Turns
from jaxquard.runtime.ray.worker.worker_program import WorkerProgram
from jaxquard.runtime.result_cell import ResultCell
from jaxquard.runtime.transfer import as_data, sharding_on
from jaxquard.runtime.transports.layout import ChannelLayout
from jaxquard.runtime.transports.open_transport import open_transport
from jaxquard.runtime.transports.peers.secret import MeshSecret
from jaxquard.runtime.transports.protocol import Transport

_log = logging.getLogger(__name__)


class ActorProcess:
    """One process of one actor."""

    def __init__(self, config: WorkerConfig, *, ip: str, node_id: str) -> None:
        self._config, self._ip, self._node_id = config, ip, node_id
        self._logs = _own_logs()
        # What is left there when the process is killed goes with Ray's session.
        self._folder = os.path.dirname(self._logs[0]) if self._logs else None
        self._activity = ActivityFile(self._folder)
        self._activity.write("starting")
        self._cells: dict[int, ResultCell] = {}
        self._programs: dict[int, WorkerProgram] = {}
        self._writings: dict[str, Future[PieceWriting]] = {}
        self._unacknowledged = Unacknowledged()
        self._turns = Turns()
        self._running = 0
        self._transport: Transport | None = None
        self._lock = threading.Lock()

    # Coming up.

    def describe(self) -> WorkerInfo:
        """Describes the process and its host."""
        return WorkerInfo(
            host=socket.gethostname(),
            ip=self._ip,
            node_id=self._node_id,
            pid=os.getpid(),
            boot=own_boot(),
            log_paths=self._logs,
            activity_path=self._activity.path,
            num_oom_kills=count_oom_kills(),
        )

    def offer_coordinator(self) -> str:
        """Finds an address on this host for `jax.distributed`."""
        return free_address(self._ip, self._folder)

    def start(self, coordinator: str | None) -> None:
        """Starts JAX on this process's devices."""
        self._activity.write("starting JAX")
        configure_jax(self._config)
        if coordinator is not None:
            join_processes(self._config, coordinator, ip=self._ip)
        mesh = make_actor_mesh(self._config)
        self._actor = Actor(index=self._config.actor, mesh=mesh)
        self._site = Site(mesh=mesh, has_witness=self._actor.platform != "cpu")
        _log.info("actor %d, process %d: %s", self._config.actor, self._config.rank, mesh.devices.flatten().tolist())
        self._activity.write("idle")

    def configure(self, settings: tuple[tuple[str, Any], ...]) -> None:
        """Applies settings of JAX that have changed on the controller."""
        apply_settings(settings)

    # Connecting; after a failure, again.

    def open_transport(self, epoch: int, secret: MeshSecret) -> str:
        """Ends what is under way, drops messages that nobody took, and returns the address for peers.

        Args:
            secret: of the mesh. It comes with a call, as calls go to this process alone; Ray keeps how it was started.
        """
        self._turns.begin(epoch)
        with self._lock:
            if self._transport is not None:
                self._transport.close()
            self._unacknowledged.clear()
            self._transport = open_transport(
                self._config.transport, actor=self._config.actor, ip=self._ip, secret=secret, folder=self._folder
            )
            return self._transport.address

    def connect(self, peers: dict[int, tuple[str, ...]]) -> None:
        assert self._transport is not None
        self._transport.connect(peers)

    # Programs.

    def prepare(self, order: ProgramOrder) -> None:
        """Receives a program; its calls are compiled next."""
        if order.number not in self._programs:
            self._programs[order.number] = WorkerProgram(order, actor=self._config.actor, site=self._site)

    def compile(self, program: int, call: int, code: bytes) -> int:
        name, start_s = self._programs[program].program.calls[call].name, time.perf_counter()
        self._activity.write(f"compiling {name}")
        num_rematerialized = self._programs[program].compile(call, code)
        _log.info("compiled %s in %.2f s", name, time.perf_counter() - start_s)
        return num_rematerialized

    def link(self, program: int) -> dict[tuple[int, int], ChannelLayout]:
        """Resolves the list and opens the channels."""
        assert self._transport is not None
        loaded = self._programs[program]
        loaded.link(is_stopped=self._is_stopped, activity=self._activity, unacknowledged=self._unacknowledged)
        self._activity.write("idle")
        return loaded.open_channels(self._transport, self._site.mesh)

    def start_program(self, program: int) -> None:
        """Prepares the first step, once the layouts of all ends are compared."""
        assert self._transport is not None
        self._transport.start(program)

    def forget(self, programs: tuple[int, ...]) -> None:
        for program in programs:
            self._programs.pop(program, None)

    # Steps, and other things in turns.

    def step(self, order: StepOrder) -> StepReply:
        """Runs this actor's part of a step."""
        try:
            with self._turns.take(order.turn):
                self._running = order.turn.epoch
                self._free(order.frees)
                reply = run_step_order(
                    order,
                    self._programs[order.program],
                    actor=self._actor,
                    cells=self._cells,
                    unacknowledged=self._unacknowledged,
                    activity=self._activity,
                    is_stopped=self._is_stopped,
                )
                self._activity.write("idle")
                if reply.failure is not None:
                    _log.error("step %d failed in %s\n%s", order.step, reply.failure.task, reply.failure.traceback)
                    reply = replace(reply, failure=replace(reply.failure, log=tail_reader(self._logs)()))
                return reply
        except TurnOver:
            self._free(order.frees)
            return StepReply(is_complete=False, kept=tuple(v for v in order.inputs if isinstance(v, int)))

    def free(self, turn: Turn, frees: tuple[int, ...]) -> None:
        """Drops cells that nobody holds, when there is no step to send the numbers with."""
        try:
            with self._turns.take(turn):
                self._free(frees)
        except TurnOver:
            self._free(frees)

    def fetch(self, cell: int) -> tuple[Shard, ...]:
        """Returns the values of a cell that this process has: its distinct shards, with their bounds."""
        if cell not in self._cells:
            raise DeletedArrayError("the values are gone: a step has donated them.")
        array = self._cells[cell].wait_ready()
        if array.is_fully_addressable or array.is_fully_replicated:
            data = as_data(array)
            return ((tuple((0, size) for size in array.shape), data),)
        return tuple(
            (
                tuple(part.indices(size)[:2] for part, size in zip(shard.index, array.shape, strict=True)),
                as_data(shard.data),
            )
            for shard in array.addressable_shards
            if shard.replica_id == 0
        )

    def wait_idle(self, limit_s: float) -> bool:
        """Waits until the process does nothing in turn, at most so long; returns True if so."""
        return self._turns.wait_free(limit_s)

    # Checkpoints.

    def save(self, turn: Turn, folder: str, name: str, cells: dict[str, int]) -> PieceTable:
        """Copies cells to host memory, in turn, and starts to write them."""
        writing: Future[PieceWriting] = self._writing(folder)
        try:
            with self._turns.take(turn):
                self._activity.write(f"saving to {folder}")
                arrays = {key: self._cells[number].wait_ready() for key, number in cells.items()}
                writing.set_result(write_pieces(Path(folder), f"{name}process{self._config.rank}", arrays))
                self._activity.write("idle")
        except BaseException as error:
            writing.set_exception(error)
            raise
        return writing.result().pieces

    def wait_saved(self, folder: str) -> Checksums:
        """Waits until the files of a `save`, called before or after this, are on disk; returns their checksums."""
        try:
            return self._writing(folder).result().wait()
        finally:
            del self._writings[folder]

    def _writing(self, folder: str) -> "Future[PieceWriting]":
        with self._lock:
            return self._writings.setdefault(folder, Future())

    def restore(self, turn: Turn, checkpoint: Checkpoint, cells: dict[int, RowsWanted]) -> None:
        """Reads arrays into new cells, in turn."""
        with self._turns.take(turn):
            self._activity.write(f"restoring from {checkpoint.path}")
            jobs = [rows_job(rows, sharding_on(self._site.mesh, rows.type)) for rows in cells.values()]
            for number, array in zip(cells, read_jobs(checkpoint, jobs), strict=True):
                self._cells[number] = ResultCell(actor=self._config.actor, buffer=array)
            self._activity.write("idle")

    # Heartbeats.

    def heartbeat(self) -> Heartbeat:
        transport = self._transport
        report = None if transport is None else transport.report()
        return Heartbeat(time_s=time.perf_counter(), activity=self._activity.text, report=report)

    def stop_epoch(self, epoch: int) -> None:
        """Ends waits of earlier epochs after a failure; steps stop before their next task."""
        self._turns.begin(epoch)

    def close(self) -> None:
        self._turns.begin(self._turns.epoch + 1)
        if self._transport is not None:
            self._transport.close()
        self._activity.remove()

    def _is_stopped(self) -> bool:
        return self._running != self._turns.epoch

    def _free(self, cells: tuple[int, ...]) -> None:
        for cell in cells:
            self._cells.pop(cell, None)


def _own_logs() -> tuple[str, ...]:
    """The files that standard output and error go to, as Ray arranges it."""
    paths = dict.fromkeys(os.readlink(f"/proc/self/fd/{stream}") for stream in (1, 2))
    return tuple(path for path in paths if os.path.isfile(path))
