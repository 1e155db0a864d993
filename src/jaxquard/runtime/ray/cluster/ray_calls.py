"""Calls into Ray, counted while they are under way, and refused once Ray's servers are gone.

Ray's library ends a process whose raylet has died at its next access to the object store, and one whose control server
has died after a minute; both with `_exit`, so that neither `finally` nor `atexit` runs. To survive, the process must
disconnect first. And it must do so while no thread is inside Ray: such a thread gets a `SystemExit`, or finds its
memory freed. So every call goes through here, and no call waits for long.
"""

import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType, TracebackType
from typing import Any

from jaxquard.errors import ActorFailed, MeshError
from jaxquard.runtime.engine import closed_error
from jaxquard.runtime.ray.cluster.import_ray import import_ray, quiet

_TICK_S = 0.25


class RayLost(ActorFailed, MeshError):
    """Ray itself is gone, and all actors with it: a server has died, or the cluster does not answer."""

    is_lost = True


class _Calls:
    """A context in which Ray may be called; it may be entered by many threads, and again inside itself."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_inside = 0
        self._reason = ""
        self.find_loss: Callable[[], str] = str

    def __enter__(self) -> ModuleType:
        ray = import_ray()
        # A call would start another Ray, open to everyone.
        is_connected = ray.is_initialized()
        with self._changed:
            if self._reason:
                raise RayLost(self._reason)
            if not is_connected:
                raise closed_error()
            self._num_inside += 1
        return ray

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._changed:
            self._num_inside -= 1
            self._changed.notify_all()
            reason = self._reason
        if reason and error is not None and not isinstance(error, KeyboardInterrupt):
            raise RayLost(reason) from error

    def refuse(self, reason: str) -> None:
        with self._changed:
            self._reason = reason

    def wait_left(self, limit_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._num_inside == 0, limit_s)


_calls = _Calls()


def in_ray() -> _Calls:
    """Returns the context of calls to Ray, which gives the module `ray`.

    Entering it raises `RayLost` if Ray is gone, and a `MeshError` if this process is connected to none.
    """
    return _calls


def refuse_calls(reason: str) -> None:
    """Refuses calls from now on, with a `RayLost` that gives this reason."""
    _calls.refuse(loss_message(reason))


def admit_calls(find_loss: Callable[[], str]) -> None:
    """Lets calls through, as this process is connected; `find_loss` says which server is gone, if one is."""
    _calls.find_loss = find_loss
    _calls.refuse("")


class _ClosingWorker:
    """Ray's core worker while it shuts down: references that are dropped meanwhile do not reach it.

    Threads may drop their last reference at any time. One that came too late would end the process.
    """

    def __init__(self, core_worker: Any) -> None:
        self._core_worker = core_worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core_worker, name)

    def remove_object_ref_reference(self, _: Any) -> None:
        pass

    def remove_actor_handle_reference(self, _: Any) -> None:
        pass


def disconnect(*, before: Callable[[], None] | None = None, limit_s: float = 5.0) -> None:
    """Disconnects this process from Ray, once no thread is inside, or this takes too long; calls `before` then."""
    from ray._private.worker import global_worker

    _calls.wait_left(limit_s)
    if before is not None:
        before()
    worker: Any = global_worker
    if hasattr(worker, "core_worker"):
        worker.core_worker = _ClosingWorker(worker.core_worker)
    with quiet():
        import_ray().shutdown()


def wait_for(references: Sequence[Any], *, num_returns: int, timeout_s: float | None) -> tuple[list[Any], list[Any]]:
    """Waits as `ray.wait` does, but is out of Ray again and again."""
    end_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    while True:
        tick_s = max(0.0, min(end_s - time.monotonic(), _TICK_S))
        with in_ray() as ray:
            done, pending = ray.wait(list(references), num_returns=num_returns, timeout=tick_s)
        if len(done) >= num_returns or time.monotonic() >= end_s:
            return done, pending


def put(value: Any) -> Any:
    """Puts a value into Ray's object store, and returns a reference to it."""
    check_servers()
    with in_ray() as ray:
        return ray.put(value)


def check_servers() -> None:
    """Raises `RayLost` if a server is gone, before the watch has noticed: for calls that use the object store."""
    reason = _calls.find_loss()
    if reason:
        raise RayLost(loss_message(reason))


def loss_message(reason: str) -> str:
    """Returns the message of a `RayLost`."""
    return f"{reason}, and all actors are lost with Ray: call mesh.restart(), and restore a checkpoint."
