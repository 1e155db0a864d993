"""Several "hosts" on this one: Ray nodes on loopback, with made-up GPUs."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from jaxquard.runtime.ray.client.import_ray import environment, quiet
from jaxquard.runtime.ray.cluster.hosts import list_hosts, run_on_hosts
from jaxquard.runtime.ray.cluster.session import Session, start_or_join

# For hosts that do answer: long, as a worker may have to be started for it.
LIMIT_S = 60
_LOOPBACK = {"node_ip_address": "127.0.0.1"}
_HEAD = {"num_cpus": 2, "no_monitor": True, "include_dashboard": False, "include_log_monitor": False}
_VARIABLES = {
    "RAY_AUTH_MODE": None,
    "RAY_ADDRESS": None,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # as docs/cluster.md says
}
_OTHERS = ({"num_cpus": 2, "num_gpus": 1}, {"num_cpus": 4, "num_gpus": 4})


@contextlib.contextmanager
def three_hosts() -> Iterator[Any]:
    """A cluster: a head with 2 CPUs, a host with 2 CPUs and 1 GPU, a host with 4 CPUs and 4 GPUs."""
    with quiet(), _without_dashboard(), environment(_VARIABLES):
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args=_HEAD | _LOOPBACK)
        for host in _OTHERS:
            cluster.add_node(wait=False, **host, **_LOOPBACK)
        cluster.wait_for_nodes(timeout=120)
    yield cluster
    with quiet():
        cluster.shutdown()


@contextlib.contextmanager
def _without_dashboard() -> Iterator[None]:
    from ray._private.node import Node

    start_dashboard = Node.start_api_server
    Node.start_api_server = lambda *_, **__: None
    try:
        yield
    finally:
        Node.start_api_server = start_dashboard


@contextlib.contextmanager
def joined(cluster: Any) -> Iterator[Session]:
    """A session on the cluster."""
    session = start_or_join(cluster.address)
    try:
        yield session
    finally:
        session.close()


def run_somewhere() -> int:
    """Runs a function on the first host, in a process that Ray starts for it; returns the id of that."""
    (found,) = run_on_hosts(_process_reader, [list_hosts()[0].host.node_id], timeout_s=LIMIT_S)
    assert isinstance(found, int), found
    return found


def _process_reader() -> Callable[[], int]:
    def read() -> int:
        import os

        return os.getpid()

    return read


def wait_until_free() -> None:
    """Waits until what earlier tests gave back shows as free."""
    deadline = time.monotonic() + 60
    while any(host.free.get("CPU") != host.total["CPU"] for host in list_hosts()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
