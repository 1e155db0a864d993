"""This program's connection to Ray: started or joined by the first mesh, shared by all, ended with the last.

A client process has it (`client_process`). The meshes of a program share one, so the connection is the one thing here
that is found, not passed. If the program itself is connected (`ray.init`), the client process joins the same cluster,
with the same environment for its workers; the program's own connection is left alone.
"""

import atexit
import importlib.util
import logging
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jaxquard._install_hint import install_hint
from jaxquard.errors import MeshError
from jaxquard.runtime.ray.client.addresses import RayAddress, parse_address
from jaxquard.runtime.ray.client.ray_commands import ConnectedRay, WantedRay
from jaxquard.runtime.ray.cluster.client_process import ClientProcess, loss_message, use_client
from jaxquard.runtime.ray.cluster.watch_servers import ServerProcess, ServerWatch, find_listener, find_process, is_dead

_NOTICE_S = 10.0
_lock = threading.RLock()
_held: list["_Connection"] = []
"""The connection of this program, if there is one."""


class Session:
    """A user of this program's connection to Ray, which all meshes share.

    Attributes:
        is_private: whether Ray was started here for this program alone.
        address: what it is connected to, for messages.
    """

    def __init__(self, connection: "_Connection", wanted: WantedRay) -> None:
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
                self._release.detach()
                dead_nodes = self._connection.find_dead_nodes()
                self._use(_find_connection(self._wanted))
                self._connection.client.dead_nodes |= dead_nodes

    def close(self) -> None:
        """Releases the connection; the last user ends it. A second call does nothing."""
        self._release()

    def _use(self, connection: "_Connection") -> None:
        connection.num_users += 1
        connection.listeners += self._listeners
        self._connection = connection
        self.is_private, self.address = connection.is_private, connection.address
        self._release = weakref.finalize(self, _release, connection)


def start_or_join(address: str | None = None, *, num_cpus: int = 1, start_timeout_s: float = 120.0) -> Session:
    """Connects this program to Ray, or shares the connection that it has.

    Args:
        address: a cluster: "ray://host:10001", "host:6379" or "auto". None: the Ray that this process is connected
            to, or else one started here for this program alone.
        num_cpus: the minimum number of processes that a Ray started here must hold.
        start_timeout_s: how long a Ray started here may take.

    Raises:
        MeshError: if Ray is missing, nothing answers at the address, the cluster has other versions, or the meshes of
            this program are connected to another cluster.
    """
    _check_installed()
    wanted = WantedRay(address=address, num_cpus=num_cpus, start_timeout_s=start_timeout_s)
    with _lock:
        return Session(_find_connection(wanted), wanted)


class _Connection:
    """A connection to Ray, with its users and its client process.

    When a server or the client process is gone, its users learn of it, and it is ended, in a thread of the watch.

    Attributes:
        loss: what is gone; empty if all is well.
        listeners: called with `loss`.
        client: the client process.
    """

    def __init__(self, client: ClientProcess) -> None:
        self.address, self.is_private = client.connected.address, bool(client.connected.servers)
        self.num_users, self.loss = 0, ""
        self.listeners: list[Callable[[str], None]] = []
        self.client, self._process_id = client, os.getpid()
        self._is_ended, self._is_lost = False, threading.Event()
        use_client(client)
        self._raylet = _find_raylet(client.connected)
        self._watch = _start_watch(client, self._raylet, self._on_lost)
        _held.append(self)
        atexit.register(self.close)

    def find_loss(self) -> str:
        """Looks at the servers now; if one is gone, waits until the watch has noticed too."""
        if not self.loss and self._watch.find_loss():
            self._is_lost.wait(_NOTICE_S)
        return self.loss

    def find_dead_nodes(self) -> frozenset[str]:
        """Finds the node of this host if its raylet is gone: the cluster's control server takes a while to see that."""
        is_gone = self._raylet is not None and is_dead(self._raylet)
        return self.client.dead_nodes | ({self.client.connected.node_id} if is_gone else set())

    def close(self) -> None:
        with _lock:
            # A forked child has this object too, and must leave the processes of its parent alone.
            if self._is_ended or os.getpid() != self._process_id:
                return
            self._is_ended = True
            if self in _held:
                _held.remove(self)
                use_client(None)
            atexit.unregister(self.close)
            self._watch.close()
            self.client.close()

    def _on_lost(self, reason: str) -> None:
        # Not under the lock: whoever closes the connection holds it, and waits for this thread.
        self.loss = self.client.find_death() or reason
        self.client.lose(loss_message(self.loss))
        self._is_lost.set()
        for listener in tuple(self.listeners):
            try:
                listener(self.loss)
            except Exception:
                logging.getLogger(__name__).exception("the loss of Ray could not be reported")
        self.client.close(is_kind=False)


def _find_raylet(ray: ConnectedRay) -> ServerProcess | None:
    """Finds the raylet of this host in a cluster that was joined."""
    return find_listener("the raylet of this host", ray.raylet_socket) if ray.raylet_socket else None


def _start_watch(client: ClientProcess, raylet: ServerProcess | None, on_lost: Callable[[str], None]) -> ServerWatch:
    """Watches the client process, and the servers that it needs; over Ray's client it needs none of them."""
    ray, own = client.connected, [find_process("jaxquard's client of Ray", client.pid)]
    if ray.servers:
        return ServerWatch((), on_lost, own=[*(find_process(name, pid) for name, pid in ray.servers), *own])
    if not ray.control_server:
        return ServerWatch((), on_lost, own=own)
    control_server = parse_address(ray.control_server)
    return ServerWatch([raylet] if raylet else [], on_lost, own=own, control_server=control_server)


def _release(connection: _Connection) -> None:
    with _lock:
        connection.num_users -= 1
        if connection.num_users == 0:
            connection.close()


def _find_connection(wanted: WantedRay) -> _Connection:
    """Returns the connection that this program has, or makes one."""
    for lost in [connection for connection in _held if connection.loss]:
        lost.close()
    if _held:
        _check_same(wanted.address, _held[0])
        return _held[0]
    client = ClientProcess()
    client.connect(wanted if wanted.address is not None else _as_the_program(wanted))
    return _Connection(client)


def _check_installed() -> None:
    try:
        is_there = importlib.util.find_spec("ray") is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise MeshError(f'runtime="ray" needs Ray, which is not installed. {install_hint("ray")}')


def _as_the_program(wanted: WantedRay) -> WantedRay:
    """Asks for the cluster to which the program itself is connected, if it is."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return wanted
    context = ray.get_runtime_context()
    if ray.util.client.ray.is_connected():
        address = f"ray://{ray.util.client.ray.get_context().client_worker._conn_str}"
    else:
        address = context.gcs_address
    return replace(wanted, address=address, runtime_env=dict(context.runtime_env) or None)


def _check_same(address: str | None, connection: _Connection) -> None:
    """Checks that an address means the cluster to which this program is connected."""
    if address is None or address == "auto" or connection.address == address:
        return
    if not _is_same(parse_address(address), parse_address(connection.address)):
        raise MeshError(
            f"address={address!r}, but this process is already connected to Ray at {connection.address}, and can be "
            "connected to one only. Close the other meshes first, or leave the address out."
        )


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
