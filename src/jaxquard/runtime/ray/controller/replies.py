"""Takes the processes' replies to steps, in the order in which each process gave them.

A process runs its steps in order, but Ray may deliver its replies in another. The order matters: a step that was
given up because the one before it failed must not be the first to say so.
"""

import logging
import queue
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxquard.runtime.ray.client.ray_commands import WorkerGone
from jaxquard.runtime.ray.cluster.client_process import RayLost
from jaxquard.runtime.ray.controller.ray_run import RayRun, describe_error
from jaxquard.runtime.ray.controller.worker_group import WorkerProcess
from jaxquard.runtime.ray.messages import StepReply
from jaxquard.runtime.step_state import TaskFailure


@dataclass(frozen=True, slots=True)
class Arrival:
    """The reply to step number `number` of a process, as a reference that is done; None if the step was not sent."""

    run: RayRun
    worker: WorkerProcess
    number: int
    done: Any


def collect_replies(
    arrivals: "queue.SimpleQueue[Arrival | None]", take: Callable[[RayRun, WorkerProcess, StepReply], None]
) -> None:
    """Passes replies on until None comes. The body of a thread."""
    early: weakref.WeakKeyDictionary[WorkerProcess, dict[int, Arrival]] = weakref.WeakKeyDictionary()
    following: weakref.WeakKeyDictionary[WorkerProcess, int] = weakref.WeakKeyDictionary()
    while (arrival := arrivals.get()) is not None:
        worker = arrival.worker
        waiting = early.setdefault(worker, {})
        waiting[arrival.number] = arrival
        while (found := waiting.pop(following.get(worker, 0), None)) is not None:
            following[worker] = found.number + 1
            reply = _read(found.done)
            if reply is not None:
                _take(found, reply, take)
        del arrival, found, worker, waiting


def _take(found: Arrival, reply: StepReply, take: Callable[[RayRun, WorkerProcess, StepReply], None]) -> None:
    """Passes one reply on; if that fails, those after it are taken all the same."""
    try:
        take(found.run, found.worker, reply)
    except Exception as cause:
        logging.getLogger(__name__).exception("a reply could not be taken")
        found.run.state.fail_now(TaskFailure(actor=found.worker.actor, order=-1, task="(replying)", cause=cause))


def _read(done: Any) -> StepReply | None:
    """Returns the reply; None if the step was not sent, or the process is gone, which the monitor notices."""
    if done is None:
        return None
    try:
        return done.value()
    except (WorkerGone, RayLost):
        return None
    except BaseException as error:
        return describe_error(error)


def weakly(method: Any) -> Any:
    """Wraps a bound method so that it does not keep its object, and does nothing once that is gone."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        found = reference()
        if found is not None:
            found(*args)

    return call
