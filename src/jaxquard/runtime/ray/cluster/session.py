"""This process's connection to Ray: started or joined by the first mesh, shared by all, ended with the last.

A process is connected to one Ray at most, so the connection is the one thing here that is found, not passed.
A connection that the program itself made (`ray.init`) is used and never ended.
"""

import atexit
import os
import socket
import threading
import weakref

from jaxquard.errors import MeshError
from jaxquard.runtime.ray.cluster.addresses import RayAddress, parse_address
from jaxquard.runtime.ray.cluster.hosts import is_client
from jaxquard.runtime.ray.cluster.import_ray import import_ray
from jaxquard.runtime.ray.cluster.join_cluster import join_cluster
from jaxquard.runtime.ray.cluster.private_ray import PrivateRay

_lock = threading.RLock()
_held: list["_Connection"] = []
"""The connection that a mesh of this process made, if there is one."""


class Session:
    """A user of this process's connection to Ray, which all meshes share.

    Attributes:
        is_private: whether Ray was started here for this program alone.
        address: what it is connected to, for messages.
    """

    def __init__(self, connection: "_Connection | None") -> None:
        self.is_private = connection is not None and connection.private is not None
        self.address = _current_address() if connection is None else connection.address
        self._release = weakref.finalize(self, _release, connection)

    def close(self) -> None:
        """Releases the connection; the last user ends it. A second call does nothing."""
        self._release()


def start_or_join(address: str | None = None, *, num_cpus: int = 1) -> Session:
    """Connects this process to Ray, or shares the connection that it has.

    Args:
        address: a cluster: "ray://host:10001", "host:6379" or "auto". None: the Ray that this process is connected
            to, or else one started here for this program alone.
        num_cpus: the minimum number of processes that a Ray started here must hold.

    Raises:
        MeshError: if Ray is missing, nothing answers at the address, the cluster has other versions, or this process is
            connected to another cluster.
    """
    ray = import_ray()
    with _lock:
        if ray.is_initialized():
            connection = _held[0] if _held else None
            _check_same(address, connection)
        else:
            for stale in tuple(_held):
                stale.close()
            connection = _connect(address, num_cpus)
        if connection is not None:
            connection.num_users += 1
        return Session(connection)


class _Connection:
    """A connection that jaxquard made, with the number of its users, and the private Ray that it started, if any."""

    def __init__(self, *, address: str, private: PrivateRay | None) -> None:
        self.address, self.private = address, private
        self.num_users = 0
        self._process_id = os.getpid()
        _held.append(self)
        # Before Ray's own exit handler, which sleeps for half a second.
        atexit.register(self.close)

    def close(self) -> None:
        with _lock:
            # A forked child has this object too, and must leave the processes of its parent alone.
            if self not in _held or os.getpid() != self._process_id:
                return
            _held.remove(self)
            atexit.unregister(self.close)
            if self.private is None:
                import_ray().shutdown()
            else:
                self.private.close()


def _release(connection: _Connection | None) -> None:
    if connection is None:
        return
    with _lock:
        connection.num_users -= 1
        if connection.num_users == 0:
            connection.close()


def _connect(address: str | None, num_cpus: int) -> _Connection:
    if address is not None:
        return _Connection(address=str(join_cluster(address)), private=None)
    try:
        private = PrivateRay(num_cpus=num_cpus)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise MeshError(f"Ray could not be started on this host: {reason[0]}") from error
    return _Connection(address=private.address, private=private)


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
