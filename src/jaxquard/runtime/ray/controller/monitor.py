"""Notices that a process of an actor has died, is frozen, or waits for a message that got lost.

A thread asks every process for a heartbeat, again and again. One that sends none for longer than the timeout is frozen,
and is killed, so that it does no harm when it wakes. A healthy process answers from a separate thread, also while it
compiles or computes. Time in which this process itself was stopped does not count.

A message is stuck if it was sent, and waited for, for several times the timeout, as a slow network takes its time: the
transport has lost it.

`actor_loss` says what happens next.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxquard.runtime.ray.client.ray_actor import WorkerError
from jaxquard.runtime.ray.client.ray_commands import WorkerGone, WorkerUnavailable
from jaxquard.runtime.ray.cluster.client_process import Reference, wait_for
from jaxquard.runtime.ray.controller.worker_group import WorkerGroup, WorkerProcess
from jaxquard.runtime.ray.messages import Heartbeat

# How many heartbeats are asked for within the timeout.
_HEARTBEATS_PER_TIMEOUT = 10
_LONGEST_INTERVAL_S = 1.0
_SHORTEST_INTERVAL_S = 0.05
# How many timeouts a message may be on its way.
_STUCK_TIMEOUTS = 6
# Rounds in a row that may go wrong before Ray counts as gone.
_MAX_ERRORS = 3


_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pulse:
    """The health of one process: the heartbeat asked for, how long it has been silent, its last heartbeat."""

    reference: Reference | None = None
    silent_s: float = 0.0
    heartbeat: Heartbeat | None = None


class Monitor:
    """A thread that calls `on_lost(worker, how)` for every process that dies, freezes or loses a message.

    Args:
        timeout_s: how long a process may send no heartbeat.
        on_tick: called between rounds, for small things to be done now and then.
    """

    def __init__(
        self,
        group: WorkerGroup,
        *,
        timeout_s: float,
        on_lost: Callable[[WorkerProcess, str], None],
        on_tick: Callable[[], None],
    ) -> None:
        self._group, self._on_lost, self._on_tick = group, on_lost, on_tick
        self.timeout_s = timeout_s
        self._interval_s = max(min(timeout_s / _HEARTBEATS_PER_TIMEOUT, _LONGEST_INTERVAL_S), _SHORTEST_INTERVAL_S)
        self._pulses: dict[WorkerProcess, _Pulse] = {}
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jaxquard monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def last_activity(self, worker: WorkerProcess) -> str:
        """Returns what a process was doing at its last heartbeat."""
        pulse = self._pulses.get(worker)
        return "" if pulse is None or pulse.heartbeat is None else pulse.heartbeat.activity

    def await_loss(self) -> None:
        """Waits until every process has sent a new heartbeat, or an actor is known to be lost."""
        heartbeats = [worker.handle.heartbeat() for worker in self._group.living_workers()]
        end_s = time.monotonic() + self._group.loss_limit_s
        while heartbeats and not self._group.losses and time.monotonic() < end_s:
            done, _ = wait_for(heartbeats, num_returns=len(heartbeats), timeout_s=0.02)
            heartbeats = [heartbeat for heartbeat in heartbeats if heartbeat not in done or not _is_answered(heartbeat)]

    def find_lost(self) -> None:
        """Asks every process for a heartbeat now, and waits until each has sent one or is known to be lost."""
        pulses = {worker: _Pulse() for worker in self._group.living_workers()}
        before_s = time.monotonic()
        while pulses := {worker: pulse for worker, pulse in pulses.items() if self._is_unsure(worker, pulse)}:
            now_s = time.monotonic()
            elapsed_s, before_s = min(now_s - before_s, 2 * self._interval_s), now_s
            for worker, pulse in pulses.items():
                self._look_after(worker, pulse, elapsed_s)
            time.sleep(_SHORTEST_INTERVAL_S / 5)

    def _is_unsure(self, worker: WorkerProcess, pulse: _Pulse) -> bool:
        """Returns True if a process is not known to be lost and has not answered."""
        return pulse.heartbeat is None and worker in self._group.living_workers()

    def _run(self) -> None:
        before_s, num_errors = time.monotonic(), 0
        while not self._is_closing.wait(self._interval_s):
            now_s = time.monotonic()
            # Longer than that, and it was this process that did not run.
            elapsed_s = min(now_s - before_s, 2 * self._interval_s)
            before_s = now_s
            try:
                self._look_around(elapsed_s)
                num_errors = 0
            except Exception as error:
                num_errors += 1
                if num_errors >= _MAX_ERRORS and not self._is_closing.is_set():
                    self._give_up(error)

    def _look_around(self, elapsed_s: float) -> None:
        workers = self._group.living_workers()
        self._pulses = {worker: self._pulses.get(worker, _Pulse()) for worker in workers}
        errors = []
        for worker in workers:
            try:
                self._look_after(worker, self._pulses[worker], elapsed_s)
            except Exception as error:
                errors.append(error)
        if errors and len(errors) == len(workers):
            raise errors[0]
        self._find_stuck(workers)
        self._on_tick()

    def _give_up(self, error: Exception) -> None:
        """Marks all processes as lost, as Ray itself does not answer."""
        _log.warning("Ray does not answer", exc_info=error)
        for worker in self._group.living_workers():
            self._on_lost(worker, f"cannot be reached, as Ray does not answer ({type(error).__name__})")

    def _look_after(self, worker: WorkerProcess, pulse: _Pulse, elapsed_s: float) -> None:
        if pulse.reference is None:
            pulse.reference = worker.handle.heartbeat()
            return
        if not pulse.reference.done():
            self._note_missing_heartbeat(worker, pulse, elapsed_s)
            return
        reference, pulse.reference = pulse.reference, None
        try:
            pulse.heartbeat = reference.value()
        except WorkerError:
            _log.warning("actor %d could not describe itself", worker.actor, exc_info=True)  # But it lives.
        except WorkerUnavailable:
            self._note_missing_heartbeat(worker, pulse, elapsed_s)
            return
        except WorkerGone as error:
            self._on_lost(worker, describe_death(error))
            return
        pulse.silent_s = 0.0
        pulse.reference = worker.handle.heartbeat()

    def _note_missing_heartbeat(self, worker: WorkerProcess, pulse: _Pulse, elapsed_s: float) -> None:
        if not worker.is_started:
            return
        pulse.silent_s += elapsed_s
        if pulse.silent_s > self.timeout_s:
            self._on_lost(worker, f"has sent no heartbeat for {pulse.silent_s:.0f} s")

    def _find_stuck(self, workers: list[WorkerProcess]) -> None:
        for worker in workers:
            heartbeat = self._pulses[worker].heartbeat
            if heartbeat is None or heartbeat.report is None:
                continue
            for waiting in heartbeat.report.waiting:
                if self._stuck_s(waiting, worker) > _STUCK_TIMEOUTS * self.timeout_s:
                    self._on_lost(
                        worker,
                        f"has waited {waiting.age_s:.0f} s for message {waiting.number} that actor {waiting.peer} sent",
                    )
                    return

    def _stuck_s(self, waiting: Any, worker: WorkerProcess) -> float:
        """Returns for how long a message has been both sent and waited for; 0 if it has not been sent."""
        for other in self._group.workers[waiting.peer]:
            heartbeat = self._pulses[other].heartbeat if other in self._pulses else None
            if other.rank != worker.rank or heartbeat is None or heartbeat.report is None:
                continue
            for sent in heartbeat.report.sent:
                is_out = (sent.step, sent.number) >= (waiting.step, waiting.number)
                if sent.peer == worker.actor and sent.program_id == waiting.program_id and is_out:
                    return min(waiting.age_s, sent.age_s)
        return 0.0


def describe_death(error: WorkerGone) -> str:
    """Describes in a few words why Ray says that a process has died."""
    if "OutOfMemory" in error.kind or "running low on memory" in str(error):
        return "was killed because its host ran out of memory"
    return "has died"


def _is_answered(heartbeat: Reference) -> bool:
    try:
        heartbeat.value()
    except WorkerError:
        return True
    except (WorkerGone, WorkerUnavailable):
        return False
    return True
