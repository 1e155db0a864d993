"""Listens for the other processes of a mesh, and admits nobody else.

On one host it listens at a socket of the file system, in a folder that only this user may enter. Between hosts it also
listens at a port, under TLS.

A stranger who connects gets nothing but the handshake. It costs a thread and about 100 bytes (some 100 KB under TLS),
for a few seconds at most; of more than `_MAX_STRANGERS` at once, the oldest of the address with most of them goes. When
all peers are there, it stops listening: a mesh that runs has no port that one could try.
"""

import contextlib
import logging
import os
import select
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jaxquard.runtime.transports.peers.connection import PeerConnection, hang_up_socket, wrap_tls
from jaxquard.runtime.transports.peers.handshake import shake_as_listener
from jaxquard.runtime.transports.peers.secret import MeshSecret

SOCKET_NAME = "peers"
HANDSHAKE_S = 10.0
"""How long a handshake may take in all."""
_MAX_STRANGERS = 64
_TICK_S = 0.25
_PAUSE_S = 1e-3
_BACKLOG = 512

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class _Stranger:
    """A connection whose other end has proved nothing yet."""

    connection: socket.socket
    origin: str
    since_s: float = field(default_factory=time.monotonic)


class PeerListener:
    """Admits peers until it is closed.

    Attributes:
        address: where peers reach it: `unix:FOLDER`, or `tls:HOST:PORT,unix:FOLDER`.
        num_refused: how many connections did not prove that they know the secret.
    """

    def __init__(
        self,
        actor: int,
        *,
        secret: MeshSecret,
        host: str | None,
        folder: str | None,
        on_peer: Callable[[int, PeerConnection], None],
    ) -> None:
        """Starts to listen.

        Args:
            actor: that this process is part of.
            host: the address of this host at which to open a port; None: this host alone can connect.
            folder: in which to make a folder for a socket, if others cannot get there. Otherwise, or if it is None, the
                system's folder for temporary files, in which nobody can move what another user has.
            on_peer: called with the actor of each peer that is admitted, on a thread of its own.
        """
        self._actor, self._secret, self._on_peer = actor, secret, on_peer
        self.num_refused = 0
        self._lock = threading.Lock()
        self._strangers: list[_Stranger] = []
        self._is_closed = False
        self._context = None if host is None else secret.tls_context(is_server=True)
        is_safe = folder is not None and is_out_of_reach(Path(folder))
        self._folder = tempfile.mkdtemp(prefix="jq-", dir=folder if is_safe else None)
        self._listeners: list[socket.socket] = []
        try:
            self._listeners.append(_listen_in(self._folder))
            self.address = f"unix:{self._folder}"
            if host is not None:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                port = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
                self._listeners.append(port)
                self.address = f"tls:{host}:{port.getsockname()[1]},{self.address}"
        except BaseException:
            self._remove()
            raise
        threading.Thread(target=self._run, name="jaxquard-listener", daemon=True).start()

    def close(self) -> None:
        """Stops listening; those who were admitted stay."""
        self._is_closed = True
        self._remove()

    def _remove(self) -> None:
        for listener in self._listeners:
            # Shutting down wakes the thread that waits on it; closing alone does not.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        poll = select.poll()
        for listener in self._listeners:
            listener.setblocking(False)
            poll.register(listener, select.POLLIN)
        while not self._is_closed:
            ready = {descriptor for descriptor, _ in poll.poll(1e3 * _TICK_S)}
            self._drop_late()
            for listener in self._listeners:
                if listener.fileno() in ready:
                    self._accept(listener)
        for listener in self._listeners:
            listener.close()
        with self._lock:
            strangers, self._strangers = self._strangers, []
        for stranger in strangers:
            hang_up_socket(stranger.connection)

    def _accept(self, listener: socket.socket) -> None:
        try:
            plain, origin = listener.accept()
        except OSError:
            # It hung up before, or this process has too many open files: neither ends the listening.
            time.sleep(_PAUSE_S)
            return
        plain.settimeout(HANDSHAKE_S)
        where = str(origin[0]) if isinstance(origin, tuple) else ""
        stranger = _Stranger(connection=plain, origin=where)
        with self._lock:
            self._strangers.append(stranger)
            crowd = self._crowd() if len(self._strangers) > _MAX_STRANGERS else None
        if crowd is not None:
            hang_up_socket(crowd.connection)
        threading.Thread(target=self._admit, args=(stranger,), name="jaxquard-handshake", daemon=True).start()

    def _crowd(self) -> _Stranger:
        """Takes out the oldest stranger of the address that has most of them."""
        (origin, _), *_ = Counter(stranger.origin for stranger in self._strangers).most_common(1)
        oldest = next(stranger for stranger in self._strangers if stranger.origin == origin)
        self._strangers.remove(oldest)
        return oldest

    def _drop_late(self) -> None:
        """Hangs up on those who are too slow: each piece may come in time, and the whole may not."""
        now_s = time.monotonic()
        with self._lock:
            for stranger in self._strangers:
                if now_s - stranger.since_s > HANDSHAKE_S:
                    hang_up_socket(stranger.connection)

    def _take_out(self, stranger: _Stranger) -> None:
        """Takes out one that is no stranger any more: from now on nobody hangs up on it. Raises if somebody has."""
        with self._lock:
            if stranger not in self._strangers:
                raise ConnectionError("it was dropped among many others")
            self._strangers.remove(stranger)

    def _admit(self, stranger: _Stranger) -> None:
        try:
            if self._context is not None and stranger.connection.family != socket.AF_UNIX:
                stranger.connection = wrapped = wrap_tls(stranger.connection, self._context, is_server=True)
                wrapped.do_handshake()
            connection = PeerConnection(stranger.connection)
            peer = shake_as_listener(
                connection, actor=self._actor, secret=self._secret, on_proof=lambda: self._take_out(stranger)
            )
            connection.begin_use()
        except Exception as error:
            self.num_refused += 1
            _log.debug("refused a connection from %s: %s", stranger.origin or "this host", error)
            stranger.connection.close()
            return
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._strangers.remove(stranger)
        self._on_peer(peer, connection)


def is_out_of_reach(folder: Path) -> bool:
    """Returns True if a folder, or one that it is in, is open to this user alone: no other can move what is inside."""
    found = [place.stat() for place in (folder, *folder.parents)]
    return any(status.st_uid == os.geteuid() and not status.st_mode & 0o077 for status in found)


@contextlib.contextmanager
def socket_path(folder: str) -> Iterator[str]:
    """Gives a path of the socket in a folder that is short enough for the kernel, whatever the folder is."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


def _listen_in(folder: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        with socket_path(folder) as path:
            listener.bind(path)
        Path(folder, SOCKET_NAME).chmod(0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
