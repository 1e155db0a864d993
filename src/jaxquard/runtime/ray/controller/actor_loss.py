"""Handles the death of an actor, from the moment it is noticed to a mesh that works again. Start reading here.

1. `monitor` notices: a process has died, sends no heartbeat, or waits for a message that never comes. The replies to
   a step may say so too: the partners of a process that failed never come out of their collective.
2. `ActorLosses`, below, asks the host of the process for a post-mortem: the task that ran, the end of the log, whether
   memory ran out. It marks the actor as lost, ends every step that is under way with an `ActorFailed`, ends the epoch
   (`epochs`), so that all others stop waiting, and kills what is left of the actor's processes.
3. The user gets the `ActorFailed` from a result, or from the next call, and calls `mesh.restart()`: `engine` has
   `worker_group` start the actor again, on another host if its own is gone, and sends it its programs. The state that
   it held comes back from a checkpoint.

With `transport="collective"` the loss of one actor is the loss of all: a collective that one side never enters holds
the other for ever.
"""

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jaxquard.errors import ActorFailed
from jaxquard.runtime.ray.client.host_functions import trace_reader
from jaxquard.runtime.ray.cluster.hosts import HostUnreachable, run_on_host
from jaxquard.runtime.ray.controller.epochs import Epochs
from jaxquard.runtime.ray.controller.monitor import Monitor
from jaxquard.runtime.ray.controller.ray_run import RayRun, RemoteCause
from jaxquard.runtime.ray.controller.replies import weakly
from jaxquard.runtime.ray.controller.worker_group import WorkerGroup, WorkerProcess
from jaxquard.runtime.ray.messages import WorkerInfo
from jaxquard.runtime.step_state import ActorPlace, TaskFailure, make_error

_TIMEOUT_S = 3.0


class ActorLosses:
    """Handles the loss of actors, whoever notices it.

    Attributes:
        monitor: the thread that watches the processes.
        is_closed: the mesh is closed, and processes that end are no loss.
    """

    def __init__(
        self,
        group: WorkerGroup,
        epochs: Epochs,
        runs: Iterable[RayRun],
        *,
        heartbeat_timeout_s: float,
        on_tick: Callable[[], None],
    ) -> None:
        """Prepares to watch; `monitor.start()` begins.

        Args:
            runs: the steps under way, as a container that the engine keeps up to date.
            on_tick: called by the monitor now and then.
        """
        self._group, self._epochs, self._runs = group, epochs, runs
        self.is_closed = False
        self._lock = threading.Lock()
        self.monitor = Monitor(group, timeout_s=heartbeat_timeout_s, on_lost=weakly(self.on_lost), on_tick=on_tick)

    def on_lost(self, worker: WorkerProcess, how: str) -> None:
        """Fails everyone who waits for a process that is gone, or must be."""
        if not self._is_news(worker):
            return
        found = PostMortem() if worker.info is None else post_mortem(worker.info)
        if worker.info is not None and found.num_oom_kills > worker.info.num_oom_kills:
            how += " (the kernel of its host has killed a process for its memory since it started)"
        activity = found.activity or self.monitor.last_activity(worker) or "unknown"
        place = ActorPlace(host=worker.host, log=found.log, is_lost=True)
        failure = TaskFailure(actor=worker.actor, order=-2, task=activity, cause=RemoteCause(how), place=place)
        self._lose([worker.actor], failure, unless=lambda: not self._is_news(worker))  # Asking its host took time.

    def lose_ray(self, reason: str) -> None:
        """Marks all actors as lost, as Ray itself is gone."""
        first = next((worker for worker in self._group.all_workers() if worker.info is not None), None)
        if first is None:  # Still starting: whoever started it gets the error from its call.
            return
        activity = self.monitor.last_activity(first) or "unknown"
        place, cause = ActorPlace(host=first.host, is_lost=True), RemoteCause(f"is lost with all others, as {reason}")
        failure = TaskFailure(actor=first.actor, order=-2, task=activity, cause=cause, place=place)
        self._lose(range(self._group.config.num_actors), failure, unless=lambda: self.is_closed)

    def lose_everyone(self, failure: TaskFailure) -> None:
        """Marks all actors as lost after a task failed, as nobody can leave its collectives."""
        if not self._group.losses:
            failure.cause.add_note('With transport="collective", all actors must start again: call mesh.restart().')
            self._lose(range(self._group.config.num_actors), failure, unless=lambda: bool(self._group.losses))

    def await_partners(self, run: RayRun, worker: WorkerProcess) -> None:
        """Ends an actor if its other processes do not come out of a collective with the one that failed."""

        def check() -> None:
            if not run.state.is_finished:
                limit_s = self.monitor.timeout_s
                self.on_lost(worker, f"did not come out of its task within {limit_s:g} s after its partner had failed")

        timer = threading.Timer(self.monitor.timeout_s, check)
        timer.daemon = True
        timer.start()

    def check_idle(self, workers: Sequence[WorkerProcess]) -> None:
        """Checks that no process still waits, after a failure elsewhere, in a collective for another one."""
        limit_s = self.monitor.timeout_s
        idle = self._group.gather([worker.handle.wait_idle(limit_s) for worker in workers])
        for worker, is_idle in zip(workers, idle, strict=True):
            if not is_idle:
                self.on_lost(worker, f"did not come out of its task within {limit_s:g} s after another one had failed")
        self._group.check_losses()

    def _is_news(self, worker: WorkerProcess) -> bool:
        """Returns True if a process belongs to the mesh, and its actor is not known to be lost."""
        is_current = any(worker in workers for workers in self._group.workers)
        return is_current and not self.is_closed and worker.actor not in self._group.losses

    def _lose(self, actors: Sequence[int], failure: TaskFailure, *, unless: Callable[[], bool]) -> None:
        """Marks actors as lost, `unless` that is no news by now: several threads may notice the same."""
        error = make_error(failure, is_intact=False)
        assert isinstance(error, ActorFailed)
        error.is_lost = True
        with self._lock:
            if unless():
                return
            # Whoever gets the error may start them again at once: only the current processes are ended.
            workers = [worker for actor in actors for worker in self._group.workers[actor]]
            self._group.losses.update(dict.fromkeys(actors, error))
        for run in tuple(self._runs):
            run.state.fail_now(failure)
        self._epochs.end()
        self._group.end(workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostMortem:
    """The traces of a dead process on its host.

    Attributes:
        activity: the task that it ran, or what else it did; empty if the host does not answer.
        log: the tail of its log.
        num_oom_kills: how many processes the host's kernel has killed for their memory, ever.
    """

    activity: str = ""
    log: str = ""
    num_oom_kills: int = 0


def post_mortem(info: WorkerInfo, *, timeout_s: float = _TIMEOUT_S) -> PostMortem:
    """Asks the host of a process that cannot be asked itself."""
    read = functools.partial(trace_reader, info.activity_path, info.log_paths)
    try:
        activity, log, num_oom_kills = run_on_host(read, info.node_id, timeout_s=timeout_s)
    except HostUnreachable:
        return PostMortem()
    return PostMortem(activity=activity, log=log, num_oom_kills=num_oom_kills)
