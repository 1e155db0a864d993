"""The Ray actor: an `ActorProcess`, called through the groups of threads in which Ray runs its methods.

A step waits for its peers, so heartbeats, reading and compiling have threads of their own. Ray sees one method for each
group. Its argument is the method of the process that is meant, packed with its arguments: Ray packs every argument by
itself, so that one is quicker than several. JAX is imported where the process runs:
the client process, which starts it, has no use for it.
"""

import functools
import logging
import pickle
import traceback
from collections.abc import Sequence
from typing import Any

from jaxquard.runtime.ray.client.import_ray import import_ray
from jaxquard.runtime.ray.client.packing import pack, unpack

_DEFAULT_GROUP = "others"
# More than can be queued at once: steps, frees and saves wait for their turns in these threads.
_GROUPS = {"turns": 16, "heartbeats": 2, "reads": 4, "compilations": 2}
_GROUP_OF = {
    "step": "turns",
    "free": "turns",
    "save": "turns",
    "restore": "turns",
    "heartbeat": "heartbeats",
    "stop_epoch": "heartbeats",
    "fetch": "reads",
    "wait_idle": "reads",
    "wait_saved": "reads",
    "compile": "compilations",
}


def group_of(method: str) -> str:
    """Returns the group of threads in which a method runs, which is the name of a method of `Worker`."""
    return _GROUP_OF.get(method, _DEFAULT_GROUP)


class WorkerError(Exception):
    """An error that a worker's method raised: the error itself, and its traceback there."""

    @property
    def cause(self) -> Exception:
        return self.args[0]

    @property
    def traceback(self) -> str:
        return self.args[1]


class Worker:
    """One process of one actor, as Ray starts it."""

    def __init__(self, config: bytes) -> None:
        logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
        logging.getLogger("jaxquard").setLevel(logging.INFO)
        from jaxquard.runtime.ray.worker.actor_process import ActorProcess

        ray = import_ray()
        node_id = ray.get_runtime_context().get_node_id()
        self._process = ActorProcess(unpack(config), ip=ray.util.get_node_ip_address(), node_id=node_id)

    def turns(self, payload: bytes, *others: Any) -> Any:
        return self._call(payload, others)

    def heartbeats(self, payload: bytes, *others: Any) -> Any:
        return self._call(payload, others)

    def reads(self, payload: bytes, *others: Any) -> Any:
        return self._call(payload, others)

    def compilations(self, payload: bytes, *others: Any) -> Any:
        return self._call(payload, others)

    def others(self, payload: bytes, *others: Any) -> Any:
        return self._call(payload, others)

    def _call(self, payload: bytes, others: Sequence[Any]) -> Any:
        """Calls the method that is packed with its arguments, and packs its result, or its error.

        Args:
            others: the buffers of large arguments, and, as lists, packed values that Ray has kept.
        """
        try:
            shared = [unpack(value[0], value[1:]) for value in others if isinstance(value, list)]
            buffers = [value for value in others if not isinstance(value, list)]
            method, arguments = unpack(payload, buffers, shared)
            if method == "inspect":
                return _packed(_inspect(self._process, *arguments))
            return _packed(getattr(self._process, method)(*arguments))
        except Exception as error:
            return _packed_error(error)


def _inspect(process: Any, function: bytes, *args: Any) -> Any:
    """Calls a function, which comes pickled, with the process: for those who look into it."""
    return pickle.loads(function)(process, *args)


def _packed(value: Any) -> Any:
    import numpy as np

    packed = pack(value)
    if not packed.buffers:
        return packed.payload
    # Ray keeps arrays beside its own pickle too.
    return [packed.payload, *(np.frombuffer(buffer, np.uint8) for buffer in packed.buffers)]


def _packed_error(error: Exception) -> Any:
    text = "".join(traceback.format_exception(error))
    try:
        found = _packed(WorkerError(error, text))
        unpack(found if isinstance(found, bytes) else found[0], () if isinstance(found, bytes) else found[1:])
        return found
    except Exception:  # It cannot be pickled, or not be read again.
        return _packed(WorkerError(RuntimeError(f"{type(error).__name__}: {error}"), text))


@functools.cache
def remote_worker() -> Any:
    """Makes Ray's class of the worker."""
    ray = import_ray()
    # Said of the methods, not of each call: Ray's client does not take it there.
    for name in _GROUPS:
        ray.method(concurrency_group=name)(getattr(Worker, name))
    # The control server would keep an event of every call: 10 MB in 1,000 steps.
    options = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}
    return ray.remote(concurrency_groups=_GROUPS, **options)(Worker)
