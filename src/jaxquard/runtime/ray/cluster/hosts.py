"""The hosts of the cluster: lists them with what is free on each, and runs small functions on them.

A function is sent by value, so a host without jaxquard can run it too, and none has to import JAX for it. For that it
must be defined inside another function and import what it uses inside itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxquard.runtime.ray.cluster.import_ray import import_ray
from jaxquard.runtime.ray.cluster.ray_calls import in_ray, wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node of the cluster: Ray's id of it, its address and its name."""

    node_id: str
    ip: str
    hostname: str

    def __str__(self) -> str:
        return self.hostname if self.hostname == self.ip else f"{self.hostname} ({self.ip})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResources:
    """The resources of a host, and those that are free, by Ray's names: "CPU", "GPU", "TPU"."""

    host: Host
    total: dict[str, float]
    free: dict[str, float]


def list_hosts() -> tuple[HostResources, ...]:
    """Lists the hosts that are alive: first the head of the cluster, then the others by address."""
    with in_ray() as ray:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        free = _free_by_node()
    nodes.sort(key=lambda node: ("node:__internal_head__" not in node["Resources"], node["NodeManagerAddress"]))
    return tuple(
        HostResources(
            host=Host(node_id=node["NodeID"], ip=node["NodeManagerAddress"], hostname=node["NodeManagerHostname"]),
            total=node["Resources"],
            free=free.get(node["NodeID"], {}),
        )
        for node in nodes
    )


def is_client() -> bool:
    """Returns True if this process reaches the cluster through Ray's client, and is on none of its nodes."""
    return import_ray().util.client.ray.is_connected()


def _free_by_node() -> dict[str, dict[str, float]]:
    def read() -> dict[str, dict[str, float]]:
        from ray._private.state import available_resources_per_node

        return available_resources_per_node()

    ray = import_ray()
    return ray.get(ray.remote(num_cpus=0)(read).remote()) if is_client() else read()


T = TypeVar("T")


class HostUnreachable(Exception):
    """A host did not answer: it is gone, unreachable or too busy. Callers turn this into an error of theirs."""


def run_on_hosts(
    function: Callable[[], T], node_ids: Sequence[str], *, timeout_s: float
) -> tuple[T | HostUnreachable, ...]:
    """Runs a function on several hosts at once.

    Args:
        function: a function defined inside another one.
        node_ids: Ray's ids of the hosts.
        timeout_s: how long all may take together.

    Returns:
        For each host the result, or why there is none.
    """
    assert "<locals>" in function.__qualname__, "only such functions are sent by value"
    with in_ray() as ray:
        task = ray.remote(num_cpus=0, max_retries=0)(function)
        references = [task.options(scheduling_strategy=_on(node_id)).remote() for node_id in node_ids]
    done, _ = wait_for(references, num_returns=len(references), timeout_s=timeout_s) if references else ([], [])
    with in_ray():
        return tuple(_result(reference, in_time=reference in done, timeout_s=timeout_s) for reference in references)


def run_on_host(function: Callable[[], T], node_id: str, *, timeout_s: float) -> T:
    """Runs a function on a host: at once if that is this one, else as a task of Ray.

    Raises:
        HostUnreachable: if no result comes in time.
    """
    if is_this_host(node_id):
        return function()
    (result,) = run_on_hosts(function, [node_id], timeout_s=timeout_s)
    if isinstance(result, HostUnreachable):
        raise result
    return result


def is_this_host(node_id: str) -> bool:
    """Returns True if this process runs on a host. Over Ray's client it runs on none of them."""
    with in_ray() as ray:
        return not is_client() and ray.get_runtime_context().get_node_id() == node_id


def _on(node_id: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def _result(reference: Any, *, in_time: bool, timeout_s: float) -> Any:
    ray = import_ray()
    if not in_time:
        ray.cancel(reference, force=True)
        return HostUnreachable(f"no answer within {timeout_s:g} s")
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        return HostUnreachable(str(error).strip().splitlines()[0])


_TIMEOUT_S = 5.0


def kill_process(node_id: str, process_id: int, *, timeout_s: float = _TIMEOUT_S) -> bool:
    """Kills a process on a host with SIGKILL, which a frozen process cannot escape either.

    Args:
        node_id: Ray's id of the host.
        process_id: the process there.
        timeout_s: how long another host may take to answer.

    Returns:
        True if the process is gone or about to be; False if the host does not answer or forbids it.
    """

    def kill() -> bool:
        import os
        import signal

        try:
            os.kill(process_id, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return True

    try:
        return run_on_host(kill, node_id, timeout_s=timeout_s)
    except HostUnreachable:
        return False
