"""The hosts of the cluster: lists them with what is free on each, and runs small functions on them."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from jaxquard.runtime.ray.client.host_functions import process_killer
from jaxquard.runtime.ray.cluster.client_process import current_client


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
    client = current_client()
    nodes = [found for found in client.request("list_nodes") if found[0]["NodeID"] not in client.dead_nodes]
    nodes.sort(
        key=lambda found: ("node:__internal_head__" not in found[0]["Resources"], found[0]["NodeManagerAddress"])
    )
    return tuple(
        HostResources(
            host=Host(node_id=node["NodeID"], ip=node["NodeManagerAddress"], hostname=node["NodeManagerHostname"]),
            total=node["Resources"],
            free=free,
        )
        for node, free in nodes
    )


T = TypeVar("T")


class HostUnreachable(Exception):
    """A host did not answer: it is gone, unreachable or too busy. Callers turn this into an error of theirs."""


def run_on_hosts(
    make_function: Callable[[], Callable[[], T]], node_ids: Sequence[str], *, timeout_s: float
) -> tuple[T | HostUnreachable, ...]:
    """Runs a function on several hosts at once.

    Args:
        make_function: makes the function; one of `host_functions`, with its arguments.
        node_ids: Ray's ids of the hosts.
        timeout_s: how long all may take together.

    Returns:
        For each host the result, or why there is none.
    """
    found = current_client().request("run_on_hosts", make_function, tuple(node_ids), timeout_s, takes_s=timeout_s)
    return tuple(result if is_there else HostUnreachable(result) for is_there, result in found)


def run_on_host(make_function: Callable[[], Callable[[], T]], node_id: str, *, timeout_s: float) -> T:
    """Runs a function on a host: at once if that is this one, else as a task of Ray.

    Raises:
        HostUnreachable: if no result comes in time.
    """
    if is_this_host(node_id):
        return make_function()()
    (result,) = run_on_hosts(make_function, [node_id], timeout_s=timeout_s)
    if isinstance(result, HostUnreachable):
        raise result
    return result


def is_this_host(node_id: str) -> bool:
    """Returns True if this process runs on a host. Over Ray's client it runs on none of them."""
    return current_client().connected.node_id == node_id


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
    try:
        return run_on_host(functools.partial(process_killer, process_id), node_id, timeout_s=timeout_s)
    except HostUnreachable:
        return False
