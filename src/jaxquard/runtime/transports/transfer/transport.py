"""Transport over `jax.experimental.transfer`: works on CPU, GPU and TPU, and outlives a lost peer.

A message is one offer of a list of arrays under a 64-bit number; the peer pulls that number. The two need
not meet: an offer holds its buffers until it is pulled, a pull waits until it is offered.

What it lacks is added here and in `transfer_ends`: layouts are compared, waits can be given up, receives are
posted early but bounded, and a message whose buffers may be donated is acknowledged. Two things are only
cured by closing the transports of all actors and making others, which is cheap as no code is compiled:
offers that nobody pulls, after an abandoned step, keep their memory until then; and pulls from an address
where nobody listens wait for ever, so that a watchdog must tell (`report`).
"""

from collections.abc import Mapping, Sequence

import jax
from jax.sharding import Mesh

from jaxquard.runtime.transports.progress import TransportProgress
from jaxquard.runtime.transports.protocol import Link, Report
from jaxquard.runtime.transports.transfer.ends import TransferReceiver, TransferSender
from jaxquard.runtime.transports.transfer.server import Exchange

WINDOW_MESSAGES = 4
WINDOW_BYTES = 256 * 2**20


class TransferTransport:
    """One process's server, and its connections to the processes of equal rank in other actors."""

    survives_loss = True

    def __init__(
        self,
        devices: Sequence[jax.Device],
        *,
        actor: int,
        host: str = "127.0.0.1",
        window_messages: int = WINDOW_MESSAGES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        """Starts to listen.

        Args:
            devices: this process's own.
            actor: that this process is part of.
            host: the address of this host under which peers reach it; nothing listens on others.
            window_messages: how many messages a receiver asks for ahead of need, at most; at least one.
            window_bytes: how many bytes they may take; a larger message is asked for alone.
        """
        self._actor = actor
        self._window = (max(1, window_messages), window_bytes)
        self._exchange = Exchange(devices[0], actor=actor, host=host)
        self._progress = TransportProgress()

    @property
    def address(self) -> str:
        return self._exchange.address

    def connect(self, peers: Mapping[int, Sequence[str]]) -> None:
        """Connects to the process of equal rank of each actor; does not notice if nobody is there."""
        rank = peers[self._actor].index(self.address)
        for actor, addresses in peers.items():
            if actor != self._actor:
                self._exchange.connect(actor, addresses[rank])

    def open_sender(self, link: Link, *, program_id: int, mesh: Mesh) -> TransferSender:
        return TransferSender(
            link,
            program_id=program_id,
            mesh=mesh,
            exchange=self._exchange,
            progress=self._progress.add_sender(peer=link.target, program_id=program_id),
        )

    def open_receiver(self, link: Link, *, program_id: int, mesh: Mesh) -> TransferReceiver:
        return TransferReceiver(
            link,
            program_id=program_id,
            mesh=mesh,
            exchange=self._exchange,
            window=self._window,
            progress=self._progress.add_receiver(peer=link.source, program_id=program_id),
        )

    def start(self, program_id: int) -> None:
        """Nothing to prepare."""

    def report(self) -> Report:
        return self._progress.report()

    def close(self) -> None:
        self._exchange.close()
