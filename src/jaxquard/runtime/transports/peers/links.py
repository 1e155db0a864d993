"""The connections of one process to all its peers: to each one to write to, from each one to read from.

A connection is written by the side that opened it, and read by the other. When a peer ends, its connections close.
"""

import logging
import threading
from collections.abc import Callable

from jaxquard.runtime.transports.peers.connection import PeerConnection
from jaxquard.runtime.transports.peers.dial import dial
from jaxquard.runtime.transports.peers.listener import PeerListener
from jaxquard.runtime.transports.peers.secret import MeshSecret

_log = logging.getLogger(__name__)


class PeerLinks:
    """Listens for peers, connects to them, and reads what they say."""

    def __init__(
        self,
        actor: int,
        *,
        secret: MeshSecret,
        host: str | None,
        folder: str | None,
        read: Callable[[int, PeerConnection], None],
        on_lost: Callable[[int, OSError], None],
    ) -> None:
        """Starts to listen; see `PeerListener` for `host` and `folder`.

        Args:
            actor: that this process is part of.
            secret: of the mesh.
            read: called with an actor and a connection that it writes to, on a thread of its own; it reads until it
                raises an `OSError`, which it does when the peer ends.
            on_lost: called when a peer has ended, or cannot be reached.
        """
        self._actor, self._secret, self._read, self._on_lost = actor, secret, read, on_lost
        self._lock = threading.Lock()
        self._out: dict[int, PeerConnection] = {}
        self._in: dict[int, PeerConnection] = {}
        self._expected: frozenset[int] | None = None
        self._is_closed = False
        self._listener = PeerListener(actor, secret=secret, host=host, folder=folder, on_peer=self._serve)
        self.address = self._listener.address

    def connect(self, peers: dict[int, str]) -> None:
        """Connects to peers by actor; one that cannot be reached is lost.

        When all of them have connected to this process too, it stops listening.
        """
        with self._lock:
            self._expected = frozenset(peers)
        for actor, address in peers.items():
            try:
                connection = dial(address, source=self._actor, target=actor, secret=self._secret)
            except OSError as error:
                _log.warning("actor %d cannot be reached: %s", actor, error)
                self._lose(actor, error)
                continue
            with self._lock:
                is_closed = self._is_closed
                if not is_closed:
                    self._out[actor] = connection
            if is_closed:
                connection.close()
                return
        self._stop_listening_if_complete()

    def write(self, actor: int, *buffers: bytes | memoryview) -> None:
        """Writes to a peer; an actor's writes must not overlap. Nothing happens if it is lost."""
        connection = self._out.get(actor)
        if connection is None:
            return
        try:
            connection.write(*buffers)
        except OSError as error:
            self._lose(actor, error)

    def try_write(self, actor: int, content: bytes) -> bool:
        """Writes a few bytes to a peer if that takes no waiting; returns False if it would, or the peer is lost."""
        connection = self._out.get(actor)
        if connection is None:
            return False
        try:
            return connection.try_write(content)
        except OSError as error:
            self._lose(actor, error)
            return False

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            outgoing, incoming = list(self._out.values()), list(self._in.values())
            self._out, self._in = {}, {}
        self._listener.close()
        for connection in incoming:
            connection.hang_up()  # The thread that reads it closes it.
        for connection in outgoing:
            connection.close()

    def _serve(self, peer: int, connection: PeerConnection) -> None:
        with self._lock:
            is_new = not self._is_closed and peer not in self._in
            if is_new:
                self._in[peer] = connection
        if not is_new:
            connection.close()
            return
        self._stop_listening_if_complete()
        try:
            self._read(peer, connection)
        except Exception as error:
            # Also if the memory for what it sends is missing: nothing after it could be read.
            self._lose(
                peer, error if isinstance(error, OSError) else ConnectionError(f"{type(error).__name__}: {error}")
            )
        finally:
            connection.close()

    def _stop_listening_if_complete(self) -> None:
        with self._lock:
            is_complete = self._expected is not None and self._expected <= self._in.keys()
        if is_complete:
            self._listener.close()

    def _lose(self, actor: int, error: OSError) -> None:
        with self._lock:
            connection = self._out.pop(actor, None)
            if self._is_closed:
                return
        # First, as closing makes a write that is under way fail for another reason.
        self._on_lost(actor, error)
        if connection is not None:
            connection.close()
