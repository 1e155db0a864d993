"""The state of one step, shared by all who hold its results: its progress, and why it failed.

Actors report here; readers wait here. Waiting is on Python events, so Ctrl-C gets through. A step is finished
when every actor has reported: its tasks have really ended, or it gave up. Only then is the error made, from
the failed task that comes first in the program's order (`ir.program.order`), since a task that fails because
another one failed always comes after it.
"""

import copy
import threading
from dataclasses import dataclass

from jaxquard.errors import ActorFailed, TaskFailed

_CONSUMED = "The donated state was consumed; restore it from a checkpoint."
_INTACT = "Nothing was donated: the inputs are intact."


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """The first task that failed on an actor, and its place in the program's order."""

    actor: int
    order: int
    task: str
    cause: BaseException
    place: "ActorPlace | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorPlace:
    """The place of an actor that is a process: its host, the tail of its log, and whether it is lost."""

    host: str
    log: str = ""
    is_lost: bool = False


class StepState:
    """Shared by the actors that run a step and the cells that hold its results.

    Attributes:
        error: why the step failed; None if it succeeded, or is not finished.
        is_finished: True once every actor has reported.
        owner: the engine that runs it, as an object to compare with.
    """

    __slots__ = (
        "_changed",
        "_dispatched",
        "_failures",
        "_is_intact",
        "_missing",
        "_sources",
        "error",
        "is_finished",
        "owner",
    )

    def __init__(self, *, num_actors: int, sources: frozenset["StepState"] = frozenset(), owner: object = None) -> None:
        self.owner = owner
        self.error: TaskFailed | None = None
        self.is_finished = False
        self._changed = threading.Condition(threading.Lock())
        self._dispatched = [False] * num_actors
        self._missing = num_actors
        self._sources = sources
        self._failures: list[TaskFailure] = []
        self._is_intact = True

    def report_dispatched(self, actor: int) -> None:
        """Records that an actor will fill no more cells of this step."""
        with self._changed:
            self._dispatched[actor] = True
            self._changed.notify_all()

    def report_ended(self, *, failure: TaskFailure | None, is_intact: bool) -> None:
        """Records that one actor has ended the step.

        Args:
            failure: its first task that failed.
            is_intact: whether it still has, or gave back, every donated input it was given.
        """
        with self._changed:
            if failure is not None:
                self._failures.append(failure)
            self._is_intact = self._is_intact and is_intact
            self._missing -= 1
            if self._missing == 0 and not self.is_finished:
                self._finish()

    def wait_dispatched(self, actor: int) -> None:
        with self._changed:
            while not self._dispatched[actor]:
                self._changed.wait()

    def wait_finished(self, timeout_s: float | None = None) -> bool:
        """Waits for every task of the step, at most so long; returns True if it is finished."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_finished, timeout_s)

    def fail_now(self, failure: TaskFailure) -> None:
        """Ends the step at once, as an actor is lost; what the others still report does not matter."""
        with self._changed:
            if not self.is_finished:
                self._failures.append(failure)
                self._is_intact = False
                self._finish()

    def raise_error(self) -> None:
        """Raises the step's error if it has one by now; a new object each time, as tracebacks add up."""
        if self.error is not None:
            raise copy.copy(self.error) from self.error.__cause__

    def _finish(self) -> None:
        self.error = self._find_error()
        self._sources = frozenset()
        self.is_finished = True
        self._dispatched = [True] * len(self._dispatched)
        self._changed.notify_all()

    def _find_error(self) -> TaskFailed | None:
        for source in self._sources:
            if source.error is not None:
                return source.error
        if not self._failures:
            return None
        first = min(self._failures, key=lambda failure: failure.order)
        return make_error(first, is_intact=self._is_intact)


def make_error(failure: TaskFailure, *, is_intact: bool) -> TaskFailed:
    """Makes the error that a user gets for a failure."""
    place, outcome = failure.place, _INTACT if is_intact else _CONSUMED
    what = summarise(failure.cause)
    if place is None:
        error = TaskFailed(f"task {failure.task} failed on actor {failure.actor}: {what}. {outcome}")
    elif place.is_lost:
        error = ActorFailed(
            f"actor {failure.actor} on {place.host} {what} while {_doing(failure.task)}. Its state is lost: call "
            "mesh.restart(), and restore a checkpoint."
        )
    else:
        error = ActorFailed(f"task {failure.task} failed on actor {failure.actor} on {place.host}: {what}. {outcome}")
    if isinstance(error, ActorFailed) and place is not None:
        error.actor, error.host, error.task = failure.actor, place.host, failure.task
        error.log, error.is_lost = place.log, place.is_lost
        if place.log:
            error.add_note(f"The last lines of its log:\n{place.log}")
    error.__cause__ = failure.cause
    return error


def _doing(activity: str) -> str:
    """Completes "while ...": with the task that a lost process ran, or with what else it did."""
    if activity == "unknown":
        return "doing something unknown"
    is_task = activity != "idle" and not activity.split(" ", 1)[0].endswith("ing")
    return f"running {activity}" if is_task else activity


def summarise(error: BaseException) -> str:
    """Returns one line of an error: the first, or, where XLA has put a Python traceback into it, the last."""
    lines = error_lines(error)
    line = lines[-1] if "Traceback" in lines[0] else lines[0]
    return line.rstrip(".")


def error_lines(error: BaseException) -> list[str]:
    """The lines of an error's message, without empty ones; the name of its type if there are none."""
    return [line.strip() for line in error_text(error).splitlines() if line.strip()] or [type(error).__name__]


def error_text(error: BaseException) -> str:
    """The message of an error; of JAX's own for `jax_debug_nans`, which only names the kind, a sentence."""
    if type(error).__name__ == "InternalFloatingPointError" and len(error.args) == 2:
        return f"it made a value that is {error.args[1]} (jax_debug_{error.args[1]}s is set)"
    return str(error)
