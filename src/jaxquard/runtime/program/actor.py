"""An actor: a mesh of devices, the one thread that feeds it, and the tasks that it has in flight.

The thread starts with the first job and runs jobs in order. Between jobs it looks after the tasks in flight,
so that a failure is known even if nobody asks for a result. It is a daemon, and it knows nothing but its
inbox: when the engine is closed, garbage collected or the interpreter exits, `halt` lets it run out and
waits for it, since a thread that is inside XLA when the interpreter goes would crash the process.

JAX dispatches ahead of the computation, and a computation that fails says so only when one looks at its
outputs. So each task leaves a witness (`InFlight`), an array that is ready when the task has ended, and bad if it
failed. Witnesses are looked at in order: the first bad one is the first task that failed on this actor.

Each actor has a maximum number of tasks in flight. On CPU it is one: with 50 multi-device computations
under way XLA:CPU was seen to wait for ever in a collective (it seems that its threads run out), and a
one-device task has ended when its call returns. One in flight also means that any output can be the witness,
since nothing donates it before it was looked at. Elsewhere calls have a separate output for it (see
`compile_calls`), which nothing donates and which takes almost no memory.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from jaxquard import _jax_compat
from jaxquard.runtime.step_state import StepState, TaskFailure


class ActorReport:
    """The report of one actor about one step: its first failure, and whether its inputs are intact."""

    __slots__ = ("_actor", "_state", "failure", "is_intact")

    def __init__(self, *, actor: int, state: StepState) -> None:
        self._actor = actor
        self._state = state
        self.failure: TaskFailure | None = None
        self.is_intact = True

    def fail(self, *, order: int, task: str, cause: BaseException) -> None:
        if self.failure is None:
            self.failure = TaskFailure(actor=self._actor, order=order, task=task, cause=cause)

    def end(self) -> None:
        self._state.report_ended(failure=self.failure, is_intact=self.is_intact)


class InFlight:
    """A queue of witnesses, used by one actor's thread alone."""

    __slots__ = ("_limit", "_waiting")

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[ActorReport, int, str, jax.Array | None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, report: ActorReport, order: int, task: str, witness: jax.Array) -> None:
        self._waiting.append((report, order, task, witness))

    def add_end(self, report: ActorReport) -> None:
        """Marks the end of a step: all that was added for it before has ended when this is settled."""
        self._waiting.append((report, -1, "", None))

    def make_room(self) -> None:
        """Settles what has ended, and waits for the oldest while there are as many as the limit."""
        waiting: Any = self._waiting
        while waiting and (len(waiting) >= self._limit or waiting[0][3] is None or _jax_compat.is_ready(waiting[0][3])):
            self.settle_oldest()

    def settle_all(self) -> None:
        while self._waiting:
            self.settle_oldest()

    def settle_oldest(self) -> None:
        """Waits for the oldest task and reports it if it failed."""
        report, order, task, witness = self._waiting.popleft()
        if witness is None:
            report.end()
            return
        try:
            witness.block_until_ready()
        except Exception as cause:
            report.fail(order=order, task=task, cause=cause)


MAX_IN_FLIGHT = 32


class Feeder:
    """The thread of one actor.

    Attributes:
        in_flight: what the thread has dispatched; only jobs use it.
        is_halting: jobs give up at their next task.
    """

    def __init__(self, *, name: str, limit: int) -> None:
        self.in_flight = InFlight(limit=limit)
        self.is_halting = False
        self._name = name
        self._inbox: queue.SimpleQueue[Callable[[Feeder], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: "Callable[[Feeder], None]") -> None:
        """Queues a job, which never raises; the caller holds the engine's lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._inbox.put(job)

    def stop(self) -> None:
        """Asks the thread to end after the queued jobs, which give up at their next task."""
        self.is_halting = True
        self._inbox.put(None)

    def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            job(self)
            del job
        self.in_flight.settle_all()

    def _next_job(self) -> "Callable[[Feeder], None] | None":
        while self.in_flight:
            try:
                return self._inbox.get_nowait()
            except queue.Empty:
                self.in_flight.settle_oldest()
        return self._inbox.get()


class Actor:
    """One actor: its index, its mesh (axes of type Auto) and its feeder.

    Attributes:
        is_in_place: True if a task has ended when its call returns, or is waited for right then.
    """

    __slots__ = ("devices", "feeder", "index", "is_in_place", "mesh", "platform")

    def __init__(self, *, index: int, mesh: Mesh, shares_devices: bool = False) -> None:
        self.index = index
        self.mesh = mesh
        self.devices: tuple[jax.Device, ...] = tuple(mesh.devices.flat)
        self.platform: str = self.devices[0].platform
        self.is_in_place = self.platform == "cpu" and (len(self.devices) == 1 or shares_devices)
        limit = 1 if self.platform == "cpu" else MAX_IN_FLIGHT
        self.feeder = Feeder(name=f"jaxquard actor {index}", limit=limit)

    def __repr__(self) -> str:
        return f"Actor({self.index}, {self.platform}, {dict(self.mesh.shape)})"


def halt(feeders: tuple[Feeder, ...]) -> None:
    """Ends all threads: asks each to stop, then waits for each."""
    for feeder in feeders:
        feeder.stop()
    for feeder in feeders:
        feeder.join()
