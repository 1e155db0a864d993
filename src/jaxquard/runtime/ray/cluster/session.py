"""This process's connection to Ray: started or joined by the first mesh, shared by all, ended with the last.

A process is connected to one Ray at most, so the connection is the one thing here that is found, not passed.
A connection that the program itself made (`ray.init`) is used and never ended, unless its servers are gone: then Ray's
library would end the process (`ray_calls`).
"""

import atexit
import importlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxquard.errors import MeshError
from jaxquard.runtime.ray.cluster.addresses import RayAddress, parse_address
from jaxquard.runtime.ray.cluster.hosts import is_client
from jaxquard.runtime.ray.cluster.import_ray import import_ray, restore_excepthook
from jaxquard.runtime.ray.cluster.join_cluster import join_cluster
from jaxquard.runtime.ray.cluster.private_ray import PrivateRay
from jaxquard.runtime.ray.cluster.ray_calls import admit_calls, disconnect, refuse_calls
from jaxquard.runtime.ray.cluster.watch_servers import ServerWatch, find_listener

_NOTICE_S = 10.0
_lock = threading.RLock()
_held: list["_Connection"] = []
"""The connection that a mesh of this process made, if there is one."""


class Session:
    """A user of this process's connection to Ray, which all meshes share.

    Attributes:
        is_private: whether Ray was started here for this program alone.
        address: what it is connected to, for messages.
    """

    def __init__(self, connection: "_Connection", wanted: "_Wanted") -> None:
        self._wanted = wanted
        self._listeners: list[Callable[[str], None]] = []
        self._use(connection)

    def find_loss(self) -> str:
        """Says what is gone if Ray is at this moment: a server that has died; empty if all is well."""
        return self._connection.find_loss()

    def on_loss(self, listener: Callable[[str], None]) -> None:
        """Has a function called with what is gone when Ray is, from another thread."""
        self._listeners.append(listener)
        self._connection.listeners.append(listener)

    def reconnect(self) -> None:
        """Starts Ray anew, or joins the cluster again, if it is gone.

        Raises:
            MeshError: if there is no cluster any more, or Ray does not start.
        """
        with _lock:
            if self._connection.loss:
                self._connection.close()
                if not self._connection.is_disconnected:
                    raise MeshError(f"{self._connection.loss}, and Ray's library does not return. End the program.")
                self._release.detach()
                self._use(_find_connection(self._wanted))

    def close(self) -> None:
        """Releases the connection; the last user ends it. A second call does nothing."""
        self._release()

    def _use(self, connection: "_Connection") -> None:
        connection.num_users += 1
        connection.listeners += self._listeners
        self._connection = connection
        self.is_private, self.address = connection.private is not None, connection.address
        self._release = weakref.finalize(self, _release, connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The Ray that a session asks for; see `start_or_join`."""

    address: str | None
    num_cpus: int
    start_timeout_s: float


def start_or_join(address: str | None = None, *, num_cpus: int = 1, start_timeout_s: float = 120.0) -> Session:
    """Connects this process to Ray, or shares the connection that it has.

    Args:
        address: a cluster: "ray://host:10001", "host:6379" or "auto". None: the Ray that this process is connected
            to, or else one started here for this program alone.
        num_cpus: the minimum number of processes that a Ray started here must hold.
        start_timeout_s: how long a Ray started here may take.

    Raises:
        MeshError: if Ray is missing, nothing answers at the address, the cluster has other versions, or this process is
            connected to another cluster.
    """
    import_ray()
    wanted = _Wanted(address=address, num_cpus=num_cpus, start_timeout_s=start_timeout_s)
    with _lock:
        return Session(_find_connection(wanted), wanted)


class _Connection:
    """A connection to Ray, with its users and, if it was started for them, the private Ray.

    When a server is gone, calls to Ray are refused, its users learn of it, and it is closed, in a thread of the watch.

    Args:
        is_own: jaxquard made it, and ends it; else the program did.

    Attributes:
        loss: what is gone; empty if all is well.
        listeners: called with `loss`.
        is_disconnected: True once this process has left it.
    """

    def __init__(self, *, address: str, private: PrivateRay | None, is_own: bool) -> None:
        self.address, self.private = address, private
        self.num_users, self.loss = 0, ""
        self.listeners: list[Callable[[str], None]] = []
        self._is_own, self._process_id = is_own, os.getpid()
        self._is_ended, self.is_disconnected, self._is_lost = False, False, threading.Event()
        # `ray.shutdown` imports it. At exit that takes long on a busy host; and as it runs source text, Python forgets
        # that Ctrl-C ended the program, and exits with 1 instead of 130.
        importlib.import_module("ray.dag.compiled_dag_node")
        self._watch = _start_watch(private, self._on_lost)
        admit_calls(str if self._watch is None else self._watch.find_loss)
        if is_own:
            restore_excepthook()
            _held.append(self)
            # Before Ray's own exit handler, which sleeps for half a second.
            atexit.register(self.close)

    def find_loss(self) -> str:
        """Looks at the servers now; if one is gone, waits until the watch has noticed too."""
        if not self.loss and self._watch is not None and self._watch.find_loss():
            self._is_lost.wait(_NOTICE_S)
        return self.loss

    def close(self) -> None:
        with _lock:
            # A forked child has this object too, and must leave the processes of its parent alone.
            if self._is_ended or os.getpid() != self._process_id:
                return
            self._is_ended = True
            if self in _held:
                _held.remove(self)
            atexit.unregister(self.close)
            if self._watch is not None:
                self._watch.close()
            if not self.loss and self._is_own:
                self._disconnect()

    def _disconnect(self) -> None:
        if self.private is not None:
            self.private.close(is_lost=bool(self.loss))
        else:
            disconnect()
        self.is_disconnected = True

    def _on_lost(self, reason: str) -> None:
        # Not under the lock: whoever closes the connection holds it, and waits for this thread.
        restore_excepthook()
        self.loss = reason
        self._is_lost.set()
        refuse_calls(reason)
        for listener in tuple(self.listeners):
            try:
                listener(reason)
            except Exception:
                logging.getLogger(__name__).exception("the loss of Ray could not be reported")
        self._disconnect()


def _start_watch(private: PrivateRay | None, on_lost: Callable[[str], None]) -> ServerWatch | None:
    """Watches the servers that this process needs; over Ray's client it needs none of them."""
    if private is not None:
        return ServerWatch(private.servers, on_lost, may_end=True)
    if is_client():
        return None
    node = _current_node()
    raylet = find_listener("the raylet of this host", node.raylet_socket_name)
    return ServerWatch([raylet] if raylet else [], on_lost, control_server=parse_address(node.gcs_address))


def _release(connection: _Connection) -> None:
    with _lock:
        connection.num_users -= 1
        if connection.num_users == 0:
            connection.close()


def _find_connection(wanted: _Wanted) -> _Connection:
    """Returns the connection that this process has, or makes one."""
    for lost in [connection for connection in _held if connection.loss]:
        lost.close()
    if import_ray().is_initialized():
        connection = _held[0] if _held else None
        _check_same(wanted.address, connection)
        return connection or _Connection(address=_current_address(), private=None, is_own=False)
    for stale in tuple(_held):
        stale.close()
    return _connect(wanted)


def _connect(wanted: _Wanted) -> _Connection:
    if wanted.address is not None:
        return _Connection(address=str(join_cluster(wanted.address)), private=None, is_own=True)
    try:
        private = PrivateRay(num_cpus=wanted.num_cpus, start_timeout_s=wanted.start_timeout_s)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise MeshError(f"Ray could not be started on this host: {reason[0]}") from error
    return _Connection(address=private.address, private=private, is_own=True)


def _check_same(address: str | None, connection: _Connection | None) -> None:
    """Checks that an address means the cluster to which this process is connected."""
    if address is None or address == "auto" or (connection is not None and connection.address == address):
        return
    wanted = parse_address(address)
    found = connection.address if connection is not None else _current_address()
    if not _is_same(wanted, parse_address(found)):
        raise MeshError(
            f"address={address!r}, but this process is already connected to Ray at {found}, and can be connected to "
            "one only. Close the other meshes or call `ray.shutdown()` first, or leave the address out."
        )


def _current_node() -> Any:
    """Returns the node of the cluster that this process is connected to."""
    from ray._private import worker

    return worker.global_worker.node


def _current_address() -> str:
    ray = import_ray()
    if is_client():
        return f"ray://{ray.util.client.ray.get_context().client_worker._conn_str}"
    return ray.get_runtime_context().gcs_address


def _is_same(one: RayAddress, other: RayAddress) -> bool:
    if one.port != other.port or one.is_client != other.is_client:
        return False
    return bool(_ips(one.host) & _ips(other.host))


def _ips(host: str) -> set[str]:
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return {host}
    local = {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)} | {"127.0.0.1", "::1"}
    return found | local if found & local else found
