"""An actor of this process: a mesh of devices and the one thread that feeds it.

The thread starts with the first job and runs jobs in order. Between jobs it looks after the tasks in flight,
so that a failure is known even if nobody asks for a result. It is a daemon, and it knows nothing but its
inbox: when the engine is closed, garbage collected or the interpreter exits, `halt` lets it run out and
waits for it, since a thread that is inside XLA when the interpreter goes would crash the process.
"""

import queue
import threading
from collections.abc import Callable

import jax
from jax.sharding import Mesh

from jaxquard.runtime.in_flight import InFlight

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
        is_in_place: whether a task has ended when its call returns, or is waited for right then.
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
    """Ends all threads: first everyone is told, then each is waited for."""
    for feeder in feeders:
        feeder.stop()
    for feeder in feeders:
        feeder.join()
