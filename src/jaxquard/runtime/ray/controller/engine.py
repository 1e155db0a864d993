"""The engine that runs programs on actors that are processes, here or on other hosts (JaxPP, sections 4.1 and 4.4).

A single controller, as in the paper: it traces, plans and exports; the processes compile, hold the state and run. A
program is sent once. A step is one call per process: numbers of cells, host inputs, and back come small results.
Tensors go from process to process through a transport, never through Ray.

When something fails, the epoch ends: every process stops waiting, and what is queued is given up. If all processes
live, the next call connects them anew and goes on; if one was lost, `restart` brings it back.

Its threads hold it weakly: it ends when it is closed, or when neither a mesh nor an array holds it any more.
"""

import itertools
import queue
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxquard.errors import ActorFailed, MeshError
from jaxquard.ir.program import Program
from jaxquard.runtime.engine import Progress
from jaxquard.runtime.program.step_cells import find_sources, take_donated
from jaxquard.runtime.ray.cluster.session import Session
from jaxquard.runtime.ray.controller.checkpoint_store import RayStore
from jaxquard.runtime.ray.controller.epochs import Epoch, Epochs
from jaxquard.runtime.ray.controller.load_program import (
    LoadedOnRay,
    connect_channels,
    load_program,
    prepare_program,
    send_code,
)
from jaxquard.runtime.ray.controller.monitor import Monitor
from jaxquard.runtime.ray.controller.post_mortem import PostMortem, post_mortem
from jaxquard.runtime.ray.controller.ray_cell import RayCell
from jaxquard.runtime.ray.controller.ray_run import RayRun, RemoteCause, find_failure
from jaxquard.runtime.ray.controller.replies import Arrival, collect_replies, weakly
from jaxquard.runtime.ray.controller.step_inputs import CellMover, check_cells, drop_moved, share_once
from jaxquard.runtime.ray.controller.worker_group import WorkerGroup, WorkerProcess
from jaxquard.runtime.ray.messages import StepOrder, StepReply, join_shards, pack_order
from jaxquard.runtime.step_state import ActorPlace, StepState, TaskFailure, make_error
from jaxquard.runtime.transports.protocol import TransferError

# How many steps may be queued before a call waits for the oldest.
_MAX_QUEUED = 4
# A process or its peer may be gone: the monitor will say, and knows more.
_HINTS_OF_LOSS = (TransferError.__name__, "ActorUnavailableError")


class RayEngine:
    """Actors that are processes, started and called through Ray."""

    def __init__(self, group: WorkerGroup, session: Session, *, heartbeat_timeout_s: float) -> None:
        self.token: object = RayStore(self)
        self.group = group
        self._session = session
        self._epochs = Epochs(group)
        self._fresh: frozenset[int] = frozenset()
        self._numbers, self._steps, self._programs = itertools.count(1), itertools.count(1), itertools.count(1)
        self._lock = threading.RLock()
        self._runs: deque[RayRun] = deque()
        self._is_closed = False
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
        self.monitor = Monitor(
            group,
            limit_s=heartbeat_timeout_s,
            on_lost=weakly(self._on_lost),
            on_tick=weakly(self._on_tick),
        )
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
            if self.group.config.transport == "collective":
                self._wait_for_steps()  # Opening a link is a rendezvous, which a step must not meet.
            loaded = prepare_program(program, number=next(self._programs), num_actors=self.group.config.num_actors)
            weakref.finalize(loaded, self._forgotten.append, loaded.number)
            load_program(loaded, group=self.group, on_progress=on_progress)
            self._loaded.add(loaded)
            return loaded

    # Steps.

    def execute(self, loaded: LoadedOnRay, inputs: Sequence[Sequence[Any]], *, measure: bool = False) -> RayRun:
        """Sends one step to every actor and returns at once; see `InProcessEngine.execute`."""
        self._make_room()
        with self._lock:
            self._check_usable()
            check_cells(inputs)
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
                self.group.check_losses()  # One that came since was not told to this run.
                step = next(self._steps)
                for actor, values in enumerate(share_once(homes, num_processes=self.group.config.num_processes)):
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

    def _send(self, order: StepOrder, run: RayRun, actor: int) -> None:
        packed = pack_order(order)
        for worker in self.group.workers[actor]:
            self._expect(worker.handle.run_step(packed), run, worker)

    def call_in_turn(self, actor: int, method: str, *args: Any) -> list[Any]:
        """Calls a method of every process of an actor, after the steps that are queued; references to the replies."""
        with self._lock:
            self._check_usable()
            turn = self._settle().take_turn(actor)
            try:
                return [getattr(worker.handle, method)(turn, *args) for worker in self.group.workers[actor]]
            except BaseException:
                self._epochs.end()  # A turn that was taken and not sent would hold up all that follow.
                raise

    def new_cell(self, actor: int) -> RayCell:
        """A cell that is filled from the start, by a restored checkpoint."""
        return RayCell(actor=actor, number=next(self._numbers), keeper=self)

    # What cells ask for.

    def fetch(self, actor: int, number: int) -> np.ndarray:
        """The values of a cell, put together from the processes of its actor."""
        self._check_usable()
        return join_shards(self.group.gather([m.handle.fetch(number) for m in self.group.workers[actor]]))

    def release(self, actor: int, number: int) -> None:
        self._released[actor].append(number)

    def generation(self, actor: int) -> int:
        return self.group.generations[actor]

    # Beginning, failing, ending.

    def restart(self) -> tuple[int, ...]:
        """Starts lost actors again and gives them their programs; returns which they were."""
        with self._lock:
            if self._is_closed:
                raise MeshError("the mesh is closed. Make a new one.")
            restarted: frozenset[int] = frozenset()
            while True:
                lost = frozenset(self.group.losses)
                if lost and self.group.config.transport == "collective":
                    lost = frozenset(range(self.group.config.num_actors))
                restarted |= lost
                try:
                    self._restart(lost)
                    return tuple(sorted(restarted))
                except ActorFailed:
                    # With its host, an actor is lost in company, but not all are missed at the same time.
                    if restarted.issuperset(self.group.losses):
                        raise

    def _restart(self, lost: frozenset[int]) -> None:
        if lost:
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
            self._is_closed = True
            self._epochs.end()
            cause = MeshError("the mesh was closed before the step had ended")
            for run in tuple(self._runs):
                run.state.fail_now(TaskFailure(actor=0, order=-1, task="(closing)", cause=cause))
        self._finalizer()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise MeshError("the mesh is closed. Make a new one.")
        self.group.check_losses()

    def _settle(self) -> Epoch:
        """The epoch to work in; after a failure a new one, with all processes connected anew."""
        while (epoch := self._epochs.current) is None or self._fresh:
            number = self._epochs.number
            self._connect(number)
            if self._epochs.begin(number):
                self._fresh = frozenset()
        return epoch

    def _connect(self, epoch: int) -> None:
        """Opens all transports and links, and gives processes that were started again their programs."""
        everyone = self.group.all_workers()
        if self.group.config.num_processes > 1:
            self._check_idle(everyone)
        addresses = self.group.gather([worker.handle.open_transport(epoch) for worker in everyone])
        peers = {actor: tuple(addresses[everyone.index(m)] for m in ms) for actor, ms in enumerate(self.group.workers)}
        self.group.gather([worker.handle.connect(peers) for worker in everyone])
        for loaded in tuple(self._loaded):
            send_code(loaded, self.group, self._fresh)
            connect_channels(loaded, self.group)

    def _check_idle(self, workers: Sequence[WorkerProcess]) -> None:
        """After a failure elsewhere, one process of an actor may wait for ever in a collective for another."""
        limit_s = self.monitor.limit_s
        idle = self.group.gather([worker.handle.wait_idle(limit_s) for worker in workers])
        for worker, is_idle in zip(workers, idle, strict=True):
            if not is_idle:
                self._on_lost(worker, f"did not come out of its task within {limit_s:g} s after another one had failed")
        self.group.check_losses()

    def _on_lost(self, worker: WorkerProcess, how: str) -> None:
        """A process is gone, or must be: everyone who waits for it is told."""
        if not self._is_news(worker):
            return
        words = PostMortem() if worker.info is None else post_mortem(worker.info)
        if worker.info is not None and words.num_oom_kills > worker.info.num_oom_kills:
            how += " (the kernel of its host has killed a process for its memory since it started)"
        activity = words.activity or self.monitor.last_activity(worker) or "unknown"
        place = ActorPlace(host=worker.host, log=words.log, is_lost=True)
        failure = TaskFailure(actor=worker.actor, order=-2, task=activity, cause=RemoteCause(how), place=place)
        if self._is_news(worker):  # To ask its host took time.
            self._lose([worker.actor], failure)

    def _is_news(self, worker: WorkerProcess) -> bool:
        """Whether a process belongs to the mesh, and its actor is not known to be lost."""
        is_current = any(worker in workers for workers in self.group.workers)
        return is_current and not self._is_closed and worker.actor not in self.group.losses

    def _lose(self, actors: Sequence[int], failure: TaskFailure) -> None:
        # Whoever is told may start them again at once: only those of now are ended.
        workers = [worker for actor in actors for worker in self.group.workers[actor]]
        error = make_error(failure, is_intact=False)
        assert isinstance(error, ActorFailed)
        error.is_lost = True
        self.group.losses.update(dict.fromkeys(actors, error))
        for run in tuple(self._runs):
            run.state.fail_now(failure)
        self._epochs.end()
        self.group.end(workers)

    # Replies.

    def _expect(self, reference: Any, run: RayRun, worker: WorkerProcess) -> None:
        replies, number = self._replies, worker.num_steps
        try:
            worker.num_steps = number + 1
            reference.future().add_done_callback(lambda done: replies.put(Arrival(run, worker, number, done)))
        except BaseException:
            replies.put(Arrival(run, worker, number, None))  # Replies are taken in order: none may be missing.
            raise

    def _take_reply(self, run: RayRun, worker: WorkerProcess, reply: StepReply) -> None:
        if reply.failure is not None and reply.failure.kind in _HINTS_OF_LOSS:
            # Its peer may be gone: then the monitor is about to say so, and that is what to tell.
            self.monitor.await_loss()
            if self.group.losses:
                run.state.wait_finished(self.monitor.limit_s)
        failure = None if self._is_closed else reply.failure
        is_collective = self.group.config.transport == "collective"
        if not reply.is_complete and not self._is_closed:
            # Before anyone is told: whoever is may send the next step at once, which is not one of this epoch.
            self._epochs.end(run.epoch.number)
        if failure is not None and is_collective:
            self._lose_everyone(find_failure(failure, worker))
        run.take_reply(worker, reply)
        while self._runs and self._runs[0].state.is_finished:
            self._runs.popleft()
        if failure is not None and not is_collective and self.group.config.num_processes > 1:
            self._await_partners(run, worker)

    def _lose_everyone(self, failure: TaskFailure) -> None:
        """A collective that one side never enters holds the other for ever, so all must be started again."""
        if not self.group.losses:
            failure.cause.add_note('With transport="collective", all actors must start again: call mesh.restart().')
            self._lose(range(self.group.config.num_actors), failure)

    def _await_partners(self, run: RayRun, worker: WorkerProcess) -> None:
        """The other processes of an actor may wait for ever for one that failed: in a collective of their task."""

        def check() -> None:
            if not run.state.is_finished:
                how = f"did not come out of its task within {self.monitor.limit_s:g} s after its partner had failed"
                self._on_lost(worker, how)

        timer = threading.Timer(self.monitor.limit_s, check)
        timer.daemon = True
        timer.start()

    def _make_room(self) -> None:
        """Waits while as many steps are queued as may be: each holds its inputs and results."""
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
        """Tells idle actors what nobody holds any more."""
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
