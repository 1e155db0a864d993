"""The Ray actor: an `ActorProcess`, with the groups of threads in which Ray runs its methods.

A step waits for its peers, so heartbeats, reading and compiling have threads of their own.
"""

import functools
import logging
from dataclasses import replace
from typing import Any

from jaxquard.runtime.ray.cluster.import_ray import import_ray
from jaxquard.runtime.ray.cluster.ray_calls import in_ray
from jaxquard.runtime.ray.messages import WorkerConfig, pack_reply, unpack_order
from jaxquard.runtime.ray.worker.actor_process import ActorProcess

# More than can be queued at once: steps, frees and saves wait for their turns in these threads.
_GROUPS = {"turns": 16, "heartbeats": 2, "reads": 4, "compile": 2}
_GROUP_OF = {
    "run_step": "turns",
    "free": "turns",
    "save": "turns",
    "restore": "turns",
    "heartbeat": "heartbeats",
    "stop_epoch": "heartbeats",
    "fetch": "reads",
    "wait_idle": "reads",
    "wait_saved": "reads",
    "compile": "compile",
}


class Worker(ActorProcess):
    """One process of one actor, as Ray starts it."""

    def __init__(self, config: WorkerConfig) -> None:
        logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
        logging.getLogger("jaxquard").setLevel(logging.INFO)
        ray = import_ray()
        context = ray.get_runtime_context()
        super().__init__(config, ip=ray.util.get_node_ip_address(), node_id=context.get_node_id())

    def run_step(self, packed: list[Any]) -> list[Any]:
        """Runs a step as it is sent; large host inputs that several processes share come as references."""
        ray = import_ray()
        order = unpack_order(packed)
        if any(isinstance(value, ray.ObjectRef) for value in order.inputs):
            values = tuple(ray.get(value) if isinstance(value, ray.ObjectRef) else value for value in order.inputs)
            order = replace(order, inputs=values)
        return pack_reply(self.step(order))


class WorkerHandle:
    """Calls a worker for the controller: `handle.step(order)` returns a reference to the reply at once."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        remote = getattr(self.actor, name).remote

        def call(*args: Any) -> Any:
            with in_ray():
                return remote(*args)

        self.__dict__[name] = call  # Remembered, as making it costs as much as a call.
        return call


@functools.cache
def _remote_class() -> Any:
    ray = import_ray()
    # Said of the methods, not of each call: Ray's client does not take it there.
    for name, group in _GROUP_OF.items():
        ray.method(concurrency_group=group)(getattr(Worker, name))
    # The control server would keep an event of every call: 10 MB in 1,000 steps.
    options = {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}
    return ray.remote(concurrency_groups=_GROUPS, **options)(Worker)


def start_worker(config: WorkerConfig, **options: Any) -> WorkerHandle:
    """Starts a process; `options` say where, and with which resources."""
    with in_ray():
        return WorkerHandle(_remote_class().options(**options).remote(config))
