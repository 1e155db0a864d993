"""Transport over `jax.experimental.transfer`: works on CPU, GPU and TPU, and outlives a lost peer.

Its server admits everybody: whoever can reach its ports can end the process with eight zero bytes (jaxlib 0.10.2), and
pull what is offered if it knows the number. The numbers are keyed (`pull.numbers`), the ports cannot be closed:
`transfer` is for hosts and networks where nobody else is (docs/security.md). `stream` has no such port.

A message is one offer of a list of arrays under a 64-bit number; the peer pulls that number. The two need
not meet: an offer holds its buffers until it is pulled, a pull waits until it is offered.

jaxquard adds what `jax.experimental.transfer` lacks: layouts are compared, waits can be given up, receives are
posted early but bounded, and a message whose buffers may be donated is acknowledged. Two things end only when
the transports of all actors are closed and made again, which is cheap as no code is compiled: offers that nobody
pulls, after an abandoned step, keep their memory until then; and pulls from an address where nobody listens wait
for ever, so that a watchdog must find them (`report`).
"""

from collections.abc import Mapping

from jax.sharding import Mesh

from jaxquard.runtime.transports.base import BaseTransport
from jaxquard.runtime.transports.progress import ReceiverProgress, SenderProgress
from jaxquard.runtime.transports.protocol import Channel
from jaxquard.runtime.transports.transfer.ends import TransferReceiver, TransferSender
from jaxquard.runtime.transports.transfer.server import TransferServer


class TransferTransport(BaseTransport):
    """One process's server, and its connections to the processes of equal rank in other actors.

    Connecting does not notice if nobody is there.
    """

    survives_loss = True

    @property
    def address(self) -> str:
        return self._server.address

    def close(self) -> None:
        self._server.close()
        self._progress.report()  # It looks whether messages are computed, and lets go of those that are.

    def _listen(self, host: str) -> None:
        self._server = TransferServer(self._devices[0], actor=self._actor, host=host, secret=self._secret)

    def _connect(self, peers: Mapping[int, str]) -> None:
        for actor, address in peers.items():
            self._server.connect(actor, address)

    def _make_sender(
        self, channel: Channel, *, program_id: int, mesh: Mesh, progress: SenderProgress
    ) -> TransferSender:
        return TransferSender(
            channel, program_id=program_id, mesh=mesh, progress=progress, server=self._server, secret=self._secret
        )

    def _make_receiver(
        self, channel: Channel, *, program_id: int, mesh: Mesh, progress: ReceiverProgress
    ) -> TransferReceiver:
        return TransferReceiver(
            channel,
            program_id=program_id,
            mesh=mesh,
            progress=progress,
            window=self._window,
            server=self._server,
            secret=self._secret,
        )
