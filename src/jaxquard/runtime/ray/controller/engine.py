"""The engine that runs programs on actors that are processes, here or on other hosts (JaxPP, sections 4.1 and 4.4).

A single controller, as in the paper: it traces, plans and exports; the processes compile, hold the state and run. A
program is sent once. A step is one call per process: numbers of cells, host inputs, and back come small results.
Tensors go from process to process through a transport, never through Ray.

When something fails, the epoch ends: every process stops waiting, and what is queued is given up. If all processes
live, the next call connects them anew and goes on; if one was lost (`actor_loss`), `restart` starts it again.

Its threads hold it weakly: it ends when it is closed, or when neither a mesh nor an array holds it any more.
"""

import contextlib
import itertools
import logging
import queue
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh

from jaxquard.errors import ActorFailed, MeshError
from jaxquard.ir.program import Program
from jaxquard.runtime.engine import Progress, closed_error
from jaxquard.runtime.program.step_cells import find_sources, take_donated
from jaxquard.runtime.ray.client.ray_commands import WorkerUnavailable
from jaxquard.runtime.ray.cluster.client_process import RayLost
from jaxquard.runtime.ray.cluster.session import Session
from jaxquard.runtime.ray.controller.actor_loss import ActorLosses
from jaxquard.runtime.ray.controller.checkpoint_store import RayStore
from jaxquard.runtime.ray.controller.epochs import Epoch, Epochs
from jaxquard.runtime.ray.controller.jax_settings import settings_to_pass_on
from jaxquard.runtime.ray.controller.load_program import (
    LoadedOnRay,
    connect_channels,
    load_program,
    prepare_program,
    send_code,
)
from jaxquard.runtime.ray.controller.monitor import Monitor
from jaxquard.runtime.ray.controller.ray_cell import RayCell
from jaxquard.runtime.ray.controller.ray_run import RayRun, find_failure
from jaxquard.runtime.ray.controller.replies import Arrival, collect_replies, weakly
from jaxquard.runtime.ray.controller.step_inputs import CellMover, check_cells, drop_moved, share_once
from jaxquard.runtime.ray.controller.worker_group import DiedWhileStarting, WorkerGroup, WorkerProcess
from jaxquard.runtime.ray.messages import StepOrder, StepReply, join_shards
from jaxquard.runtime.step_state import StepState, TaskFailure
from jaxquard.runtime.transports.open_transport import TRANSPORTS
from jaxquard.runtime.transports.peers.secret import new_mesh_secret
from jaxquard.runtime.transports.protocol import TransferError

_log = logging.getLogger(__name__)
# How many steps may be queued before a call waits for the oldest.
_MAX_QUEUED = 4
# How often `restart` tries, if more is lost meanwhile.
_MAX_RESTARTS = 4
# Failures after which a process or its peer may be gone: the monitor will know.
_HINTS_OF_LOSS = (TransferError.__name__, WorkerUnavailable.__name__)


class RayEngine:
    """Actors that are processes, started and called through Ray."""

    def __init__(self, group: WorkerGroup, session: Session, *, mesh: AbstractMesh, heartbeat_timeout_s: float) -> None:
        self.token: object = RayStore(self)
        self.group, self._mesh = group, mesh
        self._epochs = Epochs(group)
        self._fresh: frozenset[int] = frozenset()
        self._numbers, self._steps, self._programs = itertools.count(1), itertools.count(1), itertools.count(1)
        self._lock = threading.RLock()
        self._runs: deque[RayRun] = deque()
        self._survives_loss = TRANSPORTS[group.config.transport].survives_loss
        self._secret = new_mesh_secret()
        self._is_closed = False
        self.num_rematerialized = 0
        self._session = session
        self._released: list[deque[int]] = [deque() for _ in range(group.config.num_actors)]
        self._loaded: weakref.WeakSet[LoadedOnRay] = weakref.WeakSet()
        self._forgotten: deque[int] = deque()
        self._mover = CellMover(group.config.num_actors)
        self._replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        collector = threading.Thread(
            target=collect_replies,
            args=(self._replies, weakly(self._take_reply)),
            name="jaxquard replies",
            daemon=True,
        )
        collector.start()
        self._losses = ActorLosses(
            group,
            self._epochs,
            self._runs,
            heartbeat_timeout_s=heartbeat_timeout_s,
            on_tick=weakly(self._on_tick),
        )
        self.monitor = self._losses.monitor
        session.on_loss(weakly(self._losses.lose_ray))
        self._finalizer = weakref.finalize(self, _end, self._replies, collector, self.monitor, group, session)
        self.monitor.start()
        try:
            self._settle()
        except BaseException:
            self._finalizer()
            raise

    # Programs.

    def load(self, program: Program, *, on_progress: Progress | None = None) -> LoadedOnRay:
        """Checks and exports a program, and has every actor compile and link its part.

        Raises:
            ProgramError: if the program breaks a rule of the instruction list.
            MeshError: if it is for another number of actors, or cannot run in another process.
            ActorFailed: if an actor is lost meanwhile.
        """
        with self._lock:
            self._check_usable()
            self._settle()
            self._send_settings()
            if self.group.config.transport == "collective":
                self._wait_for_steps()  # Opening a channel is a rendezvous, which no step may disturb.
            config = self.group.config
            loaded = prepare_program(
                program, number=next(self._programs), num_actors=config.num_actors, platform=config.platform
            )
            weakref.finalize(loaded, self._forgotten.append, loaded.number)
            load_program(loaded, group=self.group, mesh=self._mesh, on_progress=on_progress)
            self._note_rematerialized(loaded)
            self._loaded.add(loaded)
            return loaded

    def _note_rematerialized(self, loaded: LoadedOnRay) -> None:
        counts = loaded.num_rematerialized
        if not counts:
            return
        self.num_rematerialized += sum(counts.values())
        _log.warning(
            "XLA finds no way between two shardings and gathers values whole (involuntary full rematerialization): "
            "%s. Constrain what is between them.",
            ", ".join(f"{count} on actor {actor}" for actor, count in sorted(counts.items())),
        )

    # Steps.

    def execute(self, loaded: LoadedOnRay, inputs: Sequence[Sequence[Any]], *, measure: bool = False) -> RayRun:
        """Sends one step to every actor and returns at once; see `InProcessEngine.execute`."""
        self._make_room()
        with self._lock:
            self._check_usable()
            check_cells(inputs)
            self._send_settings()
            homes = self._mover.bring_home(loaded, inputs, self)
            epoch = self._settle()
            take_donated(loaded.program, homes, RayCell)
            drop_moved(loaded.program, inputs, homes)
            state = StepState(num_actors=len(homes), sources=find_sources(homes, RayCell), owner=self.token)
            run = RayRun(
                loaded=loaded, state=state, cells=self._new_cells(loaded, state), group=self.group, epoch=epoch
            )
            run.inputs = tuple(tuple(v for v in values if isinstance(v, RayCell)) for values in homes)
            self._runs.append(run)
            num_reached = 0
            try:
                self.group.check_losses()  # One that was noticed since has not failed this run.
                step = next(self._steps)
                for actor, values in enumerate(
                    share_once(homes, self.group.client, num_processes=self.group.config.num_processes)
                ):
                    order = StepOrder(
                        program=loaded.number,
                        step=step,
                        turn=epoch.take_turn(actor),
                        inputs=tuple(value.number if isinstance(value, RayCell) else value for value in values),
                        outputs=run.cells[actor][0].number if run.cells[actor] else 0,
                        frees=self._take_released(actor),
                        measure=measure,
                    )
                    num_reached = actor + 1
                    self._send(order, run, actor)
            except BaseException as cause:
                # Some actors have the step and some have not, as after Ctrl-C: nobody may wait for the others.
                run.give_up(
                    TaskFailure(actor=0, order=-1, task="(sending the step)", cause=cause), num_reached=num_reached
                )
                self._epochs.end()
                raise
        return run

    def _send_settings(self) -> None:
        """Sends the settings of JAX that have changed; steps that are queued run with the old ones."""
        settings, config = settings_to_pass_on(), self.group.config
        changed = tuple(setting for setting in settings if setting not in config.settings)
        if changed:
            self._wait_for_steps()
            self.group.gather([worker.handle.configure(changed) for worker in self.group.all_workers()])
            self.group.config = replace(config, settings=settings)

    def _send(self, order: StepOrder, run: RayRun, actor: int) -> None:
        for worker in self.group.workers[actor]:
            self._expect(worker.handle.step(order), run, worker)

    def call_in_turn(self, actor: int, method: str, *args: Any) -> list[Any]:
        """Calls a method of every process of an actor after the queued steps; returns references to the replies."""
        with self._lock:
            self._check_usable()
            turn = self._settle().take_turn(actor)
            try:
                return [getattr(worker.handle, method)(turn, *args) for worker in self.group.workers[actor]]
            except BaseException:
                self._epochs.end()  # A turn that was taken and not sent would hold up all that follow.
                raise

    def new_cell(self, actor: int) -> RayCell:
        """Makes a cell that is filled from the start, by a restored checkpoint."""
        return RayCell(actor=actor, number=next(self._numbers), keeper=self)

    # For cells.

    def fetch(self, actor: int, number: int) -> np.ndarray:
        """Returns the values of a cell, joined from the processes of its actor."""
        self._check_usable()
        return join_shards(self.group.gather([m.handle.fetch(number) for m in self.group.workers[actor]]))

    def release(self, actor: int, number: int) -> None:
        self._released[actor].append(number)

    def generation(self, actor: int) -> int:
        return self.group.generations[actor]

    # Beginning, failing, ending.

    def restart(self) -> tuple[int, ...]:
        """Finds out which actors are lost, starts them again and gives them their programs; returns which they were."""
        with self._lock:
            if self._is_closed:
                raise closed_error()
            restarted: set[int] = set()
            for attempt in itertools.count(1):
                try:
                    self._restart_lost(restarted)
                    return tuple(sorted(restarted))
                except (ActorFailed, DiedWhileStarting, RayLost):
                    # With a host, several actors are lost, but not all are noticed at the same time. And one, or Ray,
                    # may be lost while it starts.
                    if attempt == _MAX_RESTARTS:
                        raise
        raise AssertionError("unreachable")

    def _restart_lost(self, restarted: set[int]) -> None:
        """Restarts the actors that are lost at this moment, and Ray before if that is gone; adds them to a set."""
        with contextlib.suppress(RayLost):
            self.monitor.find_lost()
        if self._session.find_loss():
            self._epochs.end()
            self.group.forget_cluster()
            for loaded in tuple(self._loaded):
                loaded.shared.clear()
            self._session.reconnect()
        lost = frozenset(self.group.losses)
        if lost and not self._survives_loss:
            lost = frozenset(range(self.group.config.num_actors))
        if lost:
            restarted |= lost
            self._epochs.end()
            self._fresh |= lost
            self.group.restart(sorted(lost))
            for actor in lost:
                self._released[actor].clear()
        self._settle()

    def close(self) -> None:
        """Ends the processes; what they hold is gone."""
        with self._lock:
            if self._is_closed:
                return
            self.group.finish_saves()
            self._is_closed = self._losses.is_closed = True
            self._epochs.end()
            cause = MeshError("the mesh was closed before the step had ended")
            for run in tuple(self._runs):
                run.state.fail_now(TaskFailure(actor=0, order=-1, task="(closing)", cause=cause))
        self._finalizer()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise closed_error()
        self.group.check_losses()

    def _settle(self) -> Epoch:
        """Returns the current epoch; after a failure begins a new one, with all processes connected anew."""
        while (epoch := self._epochs.current) is None or self._fresh:
            number = self._epochs.number
            self._connect(number)
            if self._epochs.begin(number):
                self._fresh = frozenset()
        return epoch

    def _connect(self, epoch: int) -> None:
        """Opens all transports and channels, and gives processes that were started again their programs."""
        everyone = self.group.all_workers()
        if self.group.config.num_processes > 1:
            self._losses.check_idle(everyone)
        addresses = self.group.gather([worker.handle.open_transport(epoch, self._secret) for worker in everyone])
        peers = {actor: tuple(addresses[everyone.index(m)] for m in ms) for actor, ms in enumerate(self.group.workers)}
        self.group.gather([worker.handle.connect(peers) for worker in everyone])
        for loaded in tuple(self._loaded):
            send_code(loaded, self.group, self._fresh)
            connect_channels(loaded, self.group)

    # Replies.

    def _expect(self, reference: Any, run: RayRun, worker: WorkerProcess) -> None:
        replies, number = self._replies, worker.num_steps
        try:
            worker.num_steps = number + 1
            reference.add_done_callback(lambda done: replies.put(Arrival(run, worker, number, done)))
        except BaseException:
            replies.put(Arrival(run, worker, number, None))  # Replies are taken in order: none may be missing.
            raise

    def _take_reply(self, run: RayRun, worker: WorkerProcess, reply: StepReply) -> None:
        if reply.failure is not None and reply.failure.kind in _HINTS_OF_LOSS:
            # Its peer may be gone: then the monitor is about to say so, and that is the error to raise.
            self.monitor.await_loss()
            if self.group.losses:
                run.state.wait_finished(self.monitor.timeout_s)
        failure = None if self._is_closed else reply.failure
        if not reply.is_complete and not self._is_closed:
            # Before the step fails: whoever sees that may send the next one at once, which is not one of this epoch.
            self._epochs.end(run.epoch.number)
        if failure is not None and not self._survives_loss:
            self._losses.lose_everyone(find_failure(failure, worker))
        run.take_reply(worker, reply)
        while self._runs and self._runs[0].state.is_finished:
            self._runs.popleft()
        if failure is not None and self._survives_loss and self.group.config.num_processes > 1:
            self._losses.await_partners(run, worker)

    def _make_room(self) -> None:
        """Waits while the maximum number of steps is queued: each holds its inputs and results."""
        while len(runs := [run for run in tuple(self._runs) if not run.state.is_finished]) >= _MAX_QUEUED:
            runs[0].state.wait_finished()

    def _wait_for_steps(self) -> None:
        for run in tuple(self._runs):
            run.state.wait_finished()

    def _new_cells(self, loaded: LoadedOnRay, state: StepState) -> tuple[tuple[RayCell, ...], ...]:
        return tuple(
            tuple(RayCell(actor=actor, number=next(self._numbers), keeper=self, step=state) for _ in range(count))
            for actor, count in enumerate(loaded.num_outputs)
        )

    def _take_released(self, actor: int) -> tuple[int, ...]:
        released = self._released[actor]
        return tuple(released.popleft() for _ in range(len(released)))

    def _on_tick(self) -> None:
        """Sends idle actors the numbers of cells and programs that nobody holds any more."""
        if self._is_closed or not self._lock.acquire(blocking=False):
            return
        try:
            epoch = self._epochs.current
            if epoch is None or self.group.losses or any(not run.state.is_finished for run in tuple(self._runs)):
                return
            forgotten = tuple(self._forgotten.popleft() for _ in range(len(self._forgotten)))
            for actor, workers in enumerate(self.group.workers):
                frees = self._take_released(actor)
                turn = epoch.take_turn(actor) if frees else None
                for worker in workers:
                    if turn is not None:
                        worker.handle.free(turn, frees)
                    if forgotten:
                        worker.handle.forget(forgotten)
        except BaseException:
            self._epochs.end()
            raise
        finally:
            self._lock.release()


def _end(
    replies: "queue.SimpleQueue[Any]",
    collector: threading.Thread,
    monitor: Monitor,
    group: WorkerGroup,
    session: Session,
) -> None:
    group.finish_saves()
    monitor.close()
    replies.put(None)
    if threading.current_thread() is not collector:
        collector.join(timeout=5)
    group.close()
    session.close()
