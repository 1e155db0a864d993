"""Transport over connections of our own: works on CPU, GPU and TPU, outlives a lost peer, and admits nobody else.

Between the processes of one host the bytes go through a socket of the file system, which only this user can reach;
between hosts through TCP, under TLS with the certificate of the mesh (`peers`). On CPU it is also faster than
`jax.experimental.transfer` (docs/benchmarks.md). On GPUs and TPUs every message goes through the memory of both hosts.

A message is one offer of a list of arrays under a 64-bit number; the peer pulls that number. The two need not meet:
an offer holds its arrays until it is pulled, a pull waits until it is offered. After an abandoned step, offers that
nobody pulls keep their memory until the transport is closed and made again.
"""

from collections.abc import Mapping

from jax.sharding import Mesh

from jaxquard.runtime.transports.base import BaseTransport
from jaxquard.runtime.transports.progress import ReceiverProgress, SenderProgress
from jaxquard.runtime.transports.protocol import Channel
from jaxquard.runtime.transports.stream.ends import StreamReceiver, StreamSender
from jaxquard.runtime.transports.stream.server import StreamServer


class StreamTransport(BaseTransport):
    """One process's connections to the processes of equal rank in other actors.

    Connecting does not raise if nobody is there; receiving from there does.
    """

    survives_loss = True

    @property
    def address(self) -> str:
        return self._server.address

    def close(self) -> None:
        self._server.close()
        self._progress.report()  # It looks whether messages are computed, and lets go of those that are.

    def _listen(self, host: str) -> None:
        reach = host if self._on_network else None
        self._server = StreamServer(self._actor, secret=self._secret, host=reach, folder=self._folder)

    def _connect(self, peers: Mapping[int, str]) -> None:
        self._server.connect(peers)

    def _make_sender(self, channel: Channel, *, program_id: int, mesh: Mesh, progress: SenderProgress) -> StreamSender:
        return StreamSender(
            channel, program_id=program_id, mesh=mesh, progress=progress, server=self._server, secret=self._secret
        )

    def _make_receiver(
        self, channel: Channel, *, program_id: int, mesh: Mesh, progress: ReceiverProgress
    ) -> StreamReceiver:
        return StreamReceiver(
            channel,
            program_id=program_id,
            mesh=mesh,
            progress=progress,
            window=self._window,
            server=self._server,
            secret=self._secret,
        )
