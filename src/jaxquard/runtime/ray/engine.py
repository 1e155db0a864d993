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
from jaxquard.runtime.compile_calls import Progress
from jaxquard.runtime.ray.crew import Crew, Member
from jaxquard.runtime.ray.import_ray import import_ray
from jaxquard.runtime.ray.last_words import LastWords, last_words
from jaxquard.runtime.ray.load_program import LoadedOnRay, connect_links, load_program
from jaxquard.runtime.ray.messages import StepOrder, StepReply, Turn
from jaxquard.runtime.ray.monitor import Monitor
from jaxquard.runtime.ray.move_cells import CellMover
from jaxquard.runtime.ray.ray_cell import RayCell
from jaxquard.runtime.ray.ray_run import RayRun, RemoteCause
from jaxquard.runtime.ray.ray_session import Session
from jaxquard.runtime.ray.ray_store import RayStore
from jaxquard.runtime.ray.replies import Arrival, collect_replies, weakly
from jaxquard.runtime.ray.wire import pack_order
from jaxquard.runtime.step_state import ActorPlace, Failure, StepState, make_error
from jaxquard.runtime.take_donated import find_sources, take_donated
from jaxquard.runtime.transports.protocol import TransferError

# How many steps may be queued before a call waits for the oldest.
_MOST_QUEUED = 4
# Values from this size on that several processes take are put into Ray's object store once.
_SHARED_BYTES = 64 * 1024


class RayEngine:
    """Actors that are processes, started and called through Ray."""

    def __init__(self, crew: Crew, session: Session, *, silence_limit_s: float) -> None:
        self.token: object = RayStore(self)
        self.crew = crew
        self._session = session
        self._epoch = 0
        self._epoch_lock = threading.Lock()
        self._turns = self._new_turns()
        self._numbers, self._steps, self._programs = itertools.count(1), itertools.count(1), itertools.count(1)
        self._lock = threading.RLock()
        self._runs: deque[RayRun] = deque()
        self._is_disturbed = True
        self._is_closed = False
        self._released: list[deque[int]] = [deque() for _ in range(crew.config.num_actors)]
        self._loaded: weakref.WeakSet[LoadedOnRay] = weakref.WeakSet()
        self._forgotten: deque[int] = deque()
        self._mover = CellMover(crew.config.num_actors)
        self._replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(
            target=collect_replies,
            args=(self._replies, weakly(self._take_reply)),
            name="jaxquard replies",
            daemon=True,
        ).start()
        self.monitor = Monitor(
            crew,
            limit_s=silence_limit_s,
            on_lost=weakly(self._on_lost),
            on_tick=weakly(self._on_tick),
        )
        self._finalizer = weakref.finalize(self, _end, self._replies, self.monitor, crew, session)
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
            loaded = load_program(program, number=next(self._programs), crew=self.crew, on_progress=on_progress)
            self._loaded.add(loaded)
            weakref.finalize(loaded, self._forgotten.append, loaded.number)
            return loaded

    # Steps.

    def execute(self, loaded: LoadedOnRay, inputs: Sequence[Sequence[Any]], *, measure: bool = False) -> RayRun:
        """Sends one step to every actor and returns at once; see `InProcessEngine.execute`."""
        self._make_room()
        with self._lock:
            self._check_usable()
            self._settle()
            inputs = self._mover.bring_home(loaded, inputs, self)
            for values in inputs:
                for value in values:
                    if isinstance(value, RayCell):
                        value.check_not_taken()
                        value.check_not_lost()
            take_donated(loaded.program, inputs, RayCell)
            state = StepState(num_actors=len(inputs), sources=find_sources(inputs, RayCell), owner=self.token)
            run = RayRun(loaded=loaded, state=state, cells=self._new_cells(loaded, state), crew=self.crew)
            run.inputs = tuple(tuple(v for v in values if isinstance(v, RayCell)) for values in inputs)
            step, run.epoch = next(self._steps), self._epoch
            self._runs.append(run)
            try:
                self.crew.check_losses()  # One that came since was not told to this run.
                for actor, values in enumerate(_shared_once(inputs, self.crew)):
                    order = StepOrder(
                        program=loaded.number,
                        step=step,
                        turn=Turn(run.epoch, next(self._turns[actor])),
                        inputs=tuple(value.number if isinstance(value, RayCell) else value for value in values),
                        outputs=run.cells[actor][0].number if run.cells[actor] else 0,
                        frees=self._take_released(actor),
                        measure=measure,
                    )
                    self._send(order, run, actor)
            except BaseException as cause:
                # Some actors have the step and some have not, as after Ctrl-C: nobody may wait for the others.
                run.state.fail_now(Failure(actor=0, order=-1, task="(sending the step)", cause=cause))
                self._end_epoch()
                raise
        return run

    def _send(self, order: StepOrder, run: RayRun, actor: int) -> None:
        packed = pack_order(order)
        for member in self.crew.members[actor]:
            self._expect(member.handle.run_step(packed), run, member)

    def call_in_turn(self, actor: int, method: str, *args: Any) -> list[Any]:
        """Calls a method of every process of an actor, after the steps that are queued; references to the replies."""
        with self._lock:
            self._check_usable()
            self._settle()
            turn = Turn(self._epoch, next(self._turns[actor]))
            return [getattr(member.handle, method)(turn, *args) for member in self.crew.members[actor]]

    def new_cell(self, actor: int) -> RayCell:
        """A cell that is filled from the start, by a restored checkpoint."""
        return RayCell(actor=actor, number=next(self._numbers), keeper=self)

    # What cells ask for.

    def fetch(self, actor: int, number: int) -> np.ndarray:
        """The values of a cell, put together from the processes of its actor."""
        self._check_usable()
        shards = [
            shard
            for shards in self.crew.gather([m.handle.fetch(number) for m in self.crew.members[actor]])
            for shard in shards
        ]
        index, data = shards[0]
        if len(shards) == 1 or all(other == index for other, _ in shards):
            return np.array(data)
        shape = tuple(max(index[dim][1] for index, _ in shards) for dim in range(len(index)))
        whole = np.empty((*shape, *data.shape[len(shape) :]), data.dtype)
        for index, part in shards:
            whole[tuple(slice(*bounds) for bounds in index)] = part
        return whole

    def release(self, actor: int, number: int) -> None:
        self._released[actor].append(number)

    def generation(self, actor: int) -> int:
        return self.crew.generations[actor]

    # Beginning, failing, ending.

    def restart(self) -> tuple[int, ...]:
        """Starts lost actors again and gives them their programs; returns which they were."""
        with self._lock:
            if self._is_closed:
                raise MeshError("the mesh is closed. Make a new one.")
            lost = tuple(sorted(self.crew.losses))
            if lost and self.crew.config.transport == "collective":
                lost = tuple(range(self.crew.config.num_actors))
            if lost:
                self._end_epoch()
                self.crew.restart(lost)
                for actor in lost:
                    self._released[actor].clear()
            self._settle(fresh=frozenset(lost))
            return lost

    def close(self) -> None:
        """Ends the processes; what they hold is gone."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._end_epoch()
            cause = MeshError("the mesh was closed before the step had ended")
            for run in tuple(self._runs):
                run.state.fail_now(Failure(actor=0, order=-1, task="(closing)", cause=cause))
        self._finalizer()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise MeshError("the mesh is closed. Make a new one.")
        self.crew.check_losses()

    def _settle(self, fresh: frozenset[int] = frozenset()) -> None:
        """Connects the processes anew after something failed, and restores their programs."""
        while self._is_disturbed or fresh:
            epoch = self._epoch
            self._connect(fresh)
            with self._epoch_lock:
                if epoch == self._epoch:
                    self._turns = self._new_turns()
                    self._is_disturbed = False
                    return

    def _connect(self, fresh: frozenset[int]) -> None:
        everyone = self.crew.everyone()
        if self.crew.config.num_processes > 1:
            self._check_idle(everyone)
        addresses = self.crew.gather([member.handle.open_transport(self._epoch) for member in everyone])
        peers = {actor: tuple(addresses[everyone.index(m)] for m in ms) for actor, ms in enumerate(self.crew.members)}
        self.crew.gather([member.handle.connect(peers) for member in everyone])
        for loaded in tuple(self._loaded):
            loaded.send_code(self.crew, fresh)
            connect_links(loaded, self.crew)

    def _check_idle(self, members: Sequence[Member]) -> None:
        """After a failure elsewhere, one process of an actor may wait for ever in a collective for another."""
        limit_s = self.monitor.limit_s
        idle = self.crew.gather([member.handle.wait_idle(limit_s) for member in members])
        for member, is_idle in zip(members, idle, strict=True):
            if not is_idle:
                self._on_lost(member, f"did not come out of its task within {limit_s:g} s after another one had failed")
        self.crew.check_losses()

    def _end_epoch(self) -> None:
        """Has everyone stop waiting."""
        with self._epoch_lock:
            self._epoch += 1
            self._is_disturbed = True
            for member in self.crew.living():
                member.handle.stop_epoch(self._epoch)

    def _on_lost(self, member: Member, how: str) -> None:
        """A process is gone, or must be: everyone who waits for it is told."""
        if self._is_closed or member.actor in self.crew.losses:
            return
        words = LastWords() if member.hello is None else last_words(member.hello)
        if member.hello is not None and words.num_oom_kills > member.hello.num_oom_kills:
            how += " (the kernel of its host has killed a process for its memory since it started)"
        note = words.note or self.monitor.last_note(member) or "unknown"
        place = ActorPlace(host=member.host, log=words.log, is_lost=True)
        failure = Failure(actor=member.actor, order=-2, task=note, cause=RemoteCause(how), place=place)
        error = make_error(failure, is_intact=False)
        assert isinstance(error, ActorFailed)
        self.crew.lose(member.actor, error)
        for run in tuple(self._runs):
            run.state.fail_now(failure)
        self._end_epoch()

    # Replies.

    def _expect(self, reference: Any, run: RayRun, member: Member) -> None:
        replies, number = self._replies, member.num_steps
        member.num_steps += 1
        reference.future().add_done_callback(lambda done: replies.put(Arrival(run, member, number, done)))

    def _take_reply(self, run: RayRun, member: Member, reply: StepReply) -> None:
        if reply.failure is not None and reply.failure.kind == TransferError.__name__:
            # Its peer may be gone: then the monitor is about to say so, and that is what to tell.
            self.monitor.await_loss()
            if self.crew.losses:
                run.state.wait_finished(self.monitor.limit_s)
        run.take_reply(member, reply)
        while self._runs and self._runs[0].state.is_finished:
            self._runs.popleft()
        if reply.failure is not None and not self._is_closed and run.epoch == self._epoch:
            self._end_epoch()
            if self.crew.config.transport == "collective":
                self._lose_everyone(run)

    def _lose_everyone(self, run: RayRun) -> None:
        """A collective that one side never enters holds the other for ever, so all must be started again."""
        run.state.wait_finished(self.monitor.limit_s)
        for member in self.crew.living():
            self._on_lost(member, "must start again, as a task failed and collectives between actors cannot be undone")

    def _make_room(self) -> None:
        """Waits while as many steps are queued as may be: each holds its inputs and results."""
        while len(runs := [run for run in tuple(self._runs) if not run.state.is_finished]) >= _MOST_QUEUED:
            runs[0].state.wait_finished()

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
        if self._is_closed or self._is_disturbed or not self._lock.acquire(blocking=False):
            return
        try:
            if self._is_disturbed or self.crew.losses or any(not run.state.is_finished for run in self._runs):
                return
            forgotten = tuple(self._forgotten.popleft() for _ in range(len(self._forgotten)))
            for actor, members in enumerate(self.crew.members):
                frees = self._take_released(actor)
                turn = Turn(self._epoch, next(self._turns[actor])) if frees else None
                for member in members:
                    if turn is not None:
                        member.handle.free(turn, frees)
                    if forgotten:
                        member.handle.forget(forgotten)
        finally:
            self._lock.release()

    def _new_turns(self) -> list[Any]:
        return [itertools.count() for _ in range(self.crew.config.num_actors)]


def _shared_once(inputs: Sequence[Sequence[Any]], crew: Crew) -> list[list[Any]]:
    """Large host values that several processes take, as references to one copy."""
    num_takers: dict[int, int] = {}
    for values in inputs:
        for value in values:
            if isinstance(value, np.ndarray) and value.nbytes >= _SHARED_BYTES:
                num_takers[id(value)] = num_takers.get(id(value), 0) + crew.config.num_processes
    put: dict[int, Any] = {}

    def share(value: Any) -> Any:
        if num_takers.get(id(value), 0) < 2:
            return value
        if id(value) not in put:
            put[id(value)] = import_ray().put(value)
        return put[id(value)]

    return [[share(value) for value in values] for values in inputs]


def _end(replies: "queue.SimpleQueue[Any]", monitor: Monitor, crew: Crew, session: Session) -> None:
    monitor.close()
    replies.put(None)
    crew.close()
    session.close()
