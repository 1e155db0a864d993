"""All that jaxquard asks of Ray, as commands of the controller to the client process.

The controller gives workers, placements, shared values and calls their numbers, so that no command has to wait for the
reply to another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxquard.errors import MeshError
from jaxquard.runtime.ray.client.import_ray import import_ray, quiet
from jaxquard.runtime.ray.client.join_cluster import join_cluster
from jaxquard.runtime.ray.client.private_ray import PrivateRay
from jaxquard.runtime.ray.client.ray_actor import remote_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRay:
    """The Ray that the client process starts or joins.

    Attributes:
        address: of a cluster; None: a Ray of this program alone.
        num_cpus: the minimum number of processes that a Ray started here must hold.
        start_timeout_s: how long a Ray started here may take.
        runtime_env: Ray's environment of the workers, if the program's own connection has one.
    """

    address: str | None = None
    num_cpus: int = 1
    start_timeout_s: float = 120.0
    runtime_env: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedRay:
    """The Ray to which the client process is connected.

    Attributes:
        node_id: Ray's id of this host; empty if it is reached through Ray's client, and this host is none of its own.
        control_server: the address of its control server; empty through Ray's client.
        servers: names and ids of the processes of a private Ray's servers.
        raylet_socket: where the raylet of this host listens; empty if there is none, or it is private.
    """

    address: str
    node_id: str = ""
    control_server: str = ""
    servers: tuple[tuple[str, int], ...] = ()
    raylet_socket: str = ""


class WorkerGone(Exception):
    """A worker's process is gone, Ray says: the name of Ray's error, and its text."""

    def __str__(self) -> str:
        return self.args[1]

    @property
    def kind(self) -> str:
        return self.args[0]


class WorkerUnavailable(Exception):
    """A worker's process cannot be reached at this moment."""


OnReply = Callable[[Any, Exception | None], None]
"""Called with what a worker has returned, or what Ray says instead."""


class RayCommands:
    """The commands; the connection to Ray of this process is theirs."""

    def __init__(self) -> None:
        self._private: PrivateRay | None = None
        self._workers: dict[int, Any] = {}
        self._methods: dict[tuple[int, str], Any] = {}
        self._placements: dict[int, Any] = {}
        self._shared: dict[int, Any] = {}

    # Beginning and ending.

    def connect(self, wanted: WantedRay) -> ConnectedRay:
        """Starts Ray, or joins a cluster.

        Raises:
            MeshError: if nothing answers at the address, the cluster has other versions, or Ray does not start.
        """
        if wanted.address is None:
            self._private = _start_private(wanted)
            return ConnectedRay(address=self._private.address, node_id=_own_node_id(), servers=self._private.servers)
        address = join_cluster(wanted.address, runtime_env=wanted.runtime_env)
        if address.is_client:
            return ConnectedRay(address=str(address))
        node = _current_node()
        return ConnectedRay(
            address=str(address),
            node_id=_own_node_id(),
            control_server=node.gcs_address,
            raylet_socket=node.raylet_socket_name,
        )

    def close(self) -> None:
        """Leaves the cluster, or ends the private Ray."""
        if self._private is not None:
            self._private.close()
        else:
            with quiet():
                import_ray().shutdown()

    # Hosts.

    def list_nodes(self) -> list[tuple[dict[str, Any], dict[str, float]]]:
        """Lists the nodes that are alive, in Ray's words, each with the resources that are free there."""
        free = _free_by_node()
        return [(node, free.get(node["NodeID"], {})) for node in import_ray().nodes() if node["Alive"]]

    def run_on_hosts(
        self, make_function: Callable[[], Callable[[], Any]], node_ids: Sequence[str], timeout_s: float
    ) -> list[tuple[bool, Any]]:
        """Runs a function on hosts; returns for each (True, its result) or (False, why there is none)."""
        ray = import_ray()
        task = ray.remote(num_cpus=0, max_retries=0)(make_function())
        references = [task.options(scheduling_strategy=_on(node_id)).remote() for node_id in node_ids]
        done, _ = ray.wait(references, num_returns=len(references), timeout=timeout_s) if references else ([], [])
        return [_host_result(reference, in_time=reference in done, timeout_s=timeout_s) for reference in references]

    def reserve(self, number: int, need: dict[str, float], node_ids: Sequence[str]) -> None:
        """Begins to reserve resources on hosts, a bundle for each that is named."""
        self._placements[number] = import_ray().util.placement_group(
            [need] * len(node_ids), bundle_label_selector=[{"ray.io/node-id": node_id} for node_id in node_ids]
        )

    def await_reserved(self, number: int, timeout_s: float) -> bool:
        """Waits until resources are reserved; returns False if that takes too long."""
        return self._placements[number].wait(timeout_s)

    def give_back(self, number: int) -> None:
        """Releases what was reserved; processes that run there are killed."""
        group = self._placements.pop(number, None)
        if group is not None:
            import_ray().util.remove_placement_group(group)

    # Workers.

    def start_worker(self, number: int, config: bytes, placement: int, bundle: int, need: dict[str, float]) -> None:
        """Starts a worker in a bundle of a placement."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        resources = dict(need)
        self._workers[number] = (
            remote_worker()
            .options(
                num_cpus=resources.pop("CPU"),
                num_gpus=resources.pop("GPU", 0),
                resources=resources,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._placements[placement], placement_group_bundle_index=bundle
                ),
            )
            .remote(config)
        )

    def kill_worker(self, number: int) -> None:
        """Kills a worker, whatever it does."""
        worker = self._workers.pop(number, None)
        if worker is not None:
            for key in [key for key in self._methods if key[0] == number]:
                del self._methods[key]
            import_ray().kill(worker, no_restart=True)

    def call(
        self,
        worker: int,
        group: str,
        payload: bytes,
        shared: Sequence[int],
        *,
        buffers: Sequence[Any],
        on_reply: OnReply,
    ) -> None:
        """Calls a worker in a group of its threads; the reply comes later, in another thread."""
        method = self._methods.get((worker, group))
        if method is None:
            if worker not in self._workers:
                on_reply(None, WorkerGone("WorkerGone", "it was ended"))
                return
            # Remembered, as making it costs as much as a call.
            method = self._methods[worker, group] = getattr(self._workers[worker], group).remote
        kept = [self._shared[number] for number in shared]
        for value in kept:
            if isinstance(value, Exception):
                raise value
        reference = method(payload, *map(_as_array, buffers), *kept)
        reference.future().add_done_callback(lambda done: _pass_on(done, on_reply))

    # Shared values.

    def share(self, number: int, payload: bytes, *, buffers: Sequence[Any]) -> None:
        """Puts a packed value into Ray's object store; if that fails, a call that takes it says so."""
        try:
            self._shared[number] = import_ray().put([payload, *map(_as_array, buffers)])
        except Exception as error:
            self._shared[number] = error

    def drop(self, numbers: Sequence[int]) -> None:
        """Drops shared values that nobody will ask for any more."""
        for number in numbers:
            self._shared.pop(number, None)


def _start_private(wanted: WantedRay) -> PrivateRay:
    try:
        return PrivateRay(num_cpus=wanted.num_cpus, start_timeout_s=wanted.start_timeout_s)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise MeshError(f"Ray could not be started on this host: {reason[0]}") from error


def _current_node() -> Any:
    """Returns the node of the cluster that this process is connected to."""
    from ray._private import worker

    return worker.global_worker.node


def _own_node_id() -> str:
    return import_ray().get_runtime_context().get_node_id()


def _free_by_node() -> dict[str, dict[str, float]]:
    def read() -> dict[str, dict[str, float]]:
        from ray._private.state import available_resources_per_node

        return available_resources_per_node()

    ray = import_ray()
    is_client = ray.util.client.ray.is_connected()
    return ray.get(ray.remote(num_cpus=0)(read).remote()) if is_client else read()


def _on(node_id: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def _host_result(reference: Any, *, in_time: bool, timeout_s: float) -> tuple[bool, Any]:
    ray = import_ray()
    if not in_time:
        ray.cancel(reference, force=True)
        return False, f"no answer within {timeout_s:g} s"
    try:
        return True, ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        return False, str(error).strip().splitlines()[0]


def _as_array(buffer: Any) -> np.ndarray:
    """Shows a buffer to Ray as an array, which it keeps beside its own pickle."""
    return np.frombuffer(buffer, np.uint8)


def _pass_on(done: Any, on_reply: OnReply) -> None:
    exceptions = import_ray().exceptions
    try:
        reply = done.result()
    except exceptions.ActorUnavailableError as error:
        on_reply(None, WorkerUnavailable(str(error)))
    except BaseException as error:
        on_reply(None, WorkerGone(type(error).__name__, str(error)))
    else:
        on_reply(reply, None)
