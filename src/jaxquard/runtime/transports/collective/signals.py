"""Small signals between processes, for a transport that must agree before it acts.

A signal is (kind, step, program id, order), 25 bytes. Signals of one process to another arrive in order, and only
processes of the mesh can send any (`peers`). When a peer ends, its connections close, and `on_lost` says so.
"""

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple

from jaxquard.runtime.transports.peers.connection import PeerConnection
from jaxquard.runtime.transports.peers.links import PeerLinks
from jaxquard.runtime.transports.peers.secret import MeshSecret

_FORMAT = struct.Struct("<bqqq")


class SignalKind(IntEnum):
    """The kind of a signal."""

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
        self,
        actor: int,
        *,
        secret: MeshSecret,
        host: str | None,
        folder: str | None,
        on_signal: Callable[[int, Signal], None],
        on_lost: Callable[[int], None],
    ) -> None:
        """Starts to listen, see `PeerListener`; the functions are called on separate threads, with the peer's actor."""
        self._on_signal = on_signal
        self._links = PeerLinks(
            actor,
            secret=secret,
            host=host,
            folder=folder,
            read=self._read,
            on_lost=lambda peer, _: on_lost(peer),
        )
        self.address = self._links.address

    def connect(self, peers: Mapping[int, str]) -> None:
        self._links.connect(dict(peers))

    def send(self, actor: int, signal: Signal) -> None:
        self._links.write(actor, _FORMAT.pack(*signal))

    def close(self) -> None:
        self._links.close()

    def _read(self, peer: int, connection: PeerConnection) -> None:
        while True:
            kind, step, program_id, order = _FORMAT.unpack(connection.read(_FORMAT.size))
            self._on_signal(peer, Signal(SignalKind(kind), step, program_id, order))
