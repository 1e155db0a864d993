"""Small signals between processes over plain sockets, for a transport that must agree before it acts.

A signal is (kind, step, program id, order), 25 bytes. Every process listens at one address and keeps one
socket to each peer for what it says itself; its first signal gives its actor number. Signals of one process to
another arrive in order. When a peer ends, its sockets close, and `on_lost` says so.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

_FORMAT = struct.Struct("<bqqq")


class SignalKind(IntEnum):
    """The kind of a signal."""

    HELLO = 0
    OFFER = 1
    GRANT = 2
    REFUSE = 3


class Signal(NamedTuple):
    """A statement about one transfer."""

    kind: SignalKind
    step: int
    program_id: int
    order: int


class Signals:
    """Sends signals to peers, and receives theirs."""

    def __init__(
        self, actor: int, *, host: str, on_signal: Callable[[int, Signal], None], on_lost: Callable[[int], None]
    ) -> None:
        """Starts to listen; the functions are called on separate threads, with the peer's actor."""
        self._actor = actor
        self._on_signal = on_signal
        self._on_lost = on_lost
        self._is_closed = False
        self._out: dict[int, socket.socket] = {}
        self._in: list[socket.socket] = []
        self._listener = socket.create_server((host, 0))
        self.address = "{}:{}".format(*self._listener.getsockname()[:2])
        threading.Thread(target=self._accept, name="jaxquard-signals", daemon=True).start()

    def connect(self, actor: int, address: str) -> None:
        host, port = address.rsplit(":", 1)
        out = socket.create_connection((host, int(port)))
        out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        out.sendall(_FORMAT.pack(SignalKind.HELLO, 0, 0, self._actor))
        old = self._out.get(actor)
        self._out[actor] = out
        if old is not None:
            old.close()

    def send(self, actor: int, signal: Signal) -> None:
        try:
            self._out[actor].sendall(_FORMAT.pack(*signal))
        except OSError:
            self._lose(actor)

    def close(self) -> None:
        self._is_closed = True
        for end in (self._listener, *self._out.values(), *self._in):
            # Shutting down wakes the thread that waits on it; closing alone does not.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._in.append(connection)
            threading.Thread(target=self._listen, args=(connection,), name="jaxquard-signals", daemon=True).start()

    def _listen(self, connection: socket.socket) -> None:
        peer: int | None = None
        with contextlib.suppress(OSError), connection.makefile("rb") as stream:
            while len(frame := stream.read(_FORMAT.size)) == _FORMAT.size:
                kind, step, program_id, order = _FORMAT.unpack(frame)
                if kind == SignalKind.HELLO:
                    peer = order
                elif peer is not None:
                    self._on_signal(peer, Signal(SignalKind(kind), step, program_id, order))
        if peer is not None:
            self._lose(peer)

    def _lose(self, peer: int) -> None:
        if not self._is_closed:
            self._on_lost(peer)
