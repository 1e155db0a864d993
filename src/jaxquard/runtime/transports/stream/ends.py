"""The two ends of a channel over `StreamServer`."""

import jax
from jax.sharding import Mesh

from jaxquard.runtime.transports.base import BaseSender
from jaxquard.runtime.transports.peers.secret import MeshSecret
from jaxquard.runtime.transports.progress import ReceiverProgress, SenderProgress
from jaxquard.runtime.transports.protocol import Channel, Sent
from jaxquard.runtime.transports.pull.numbers import offer_number
from jaxquard.runtime.transports.pull.receiver import PullReceiver
from jaxquard.runtime.transports.stream.frames import MessageBytes
from jaxquard.runtime.transports.stream.server import StreamOffer, StreamPull, StreamServer
from jaxquard.runtime.transports.wire import WireMessage


class StreamSender(BaseSender):
    """Offers messages."""

    def __init__(
        self,
        channel: Channel,
        *,
        program_id: int,
        mesh: Mesh,
        progress: SenderProgress,
        server: StreamServer,
        secret: MeshSecret,
    ) -> None:
        super().__init__(channel, program_id=program_id, mesh=mesh, progress=progress)
        self._server, self._secret = server, secret
        self._forms = message_forms(self.messages)
        self._last: StreamOffer | None = None

    def _post(self, step: int, number: int, parts: list[jax.Array]) -> None:
        offer = offer_number(self._secret, self.program_id, step, self.channel, number)
        self._last = self._server.offer(offer, self._forms[number], parts)

    def _confirm(self, step: int, number: int) -> Sent:
        assert self._last is not None
        return self._last


class StreamReceiver(PullReceiver):
    """Pulls messages."""

    def __init__(
        self,
        channel: Channel,
        *,
        program_id: int,
        mesh: Mesh,
        progress: ReceiverProgress,
        window: tuple[int, int],
        server: StreamServer,
        secret: MeshSecret,
    ) -> None:
        super().__init__(channel, program_id=program_id, mesh=mesh, progress=progress, window=window)
        self._server, self._secret = server, secret
        self._forms = message_forms(self.messages)

    def _start_pull(self, step: int, number: int, message: WireMessage) -> StreamPull:
        offer = offer_number(self._secret, self.program_id, step, self.channel, number)
        return self._server.pull(self.channel.source, offer, self._forms[number])


def message_forms(messages: tuple[WireMessage, ...]) -> tuple[MessageBytes, ...]:
    """Makes the forms of all messages of a channel, each distinct one once."""
    distinct = {id(message): MessageBytes(message) for message in {id(m): m for m in messages}.values()}
    return tuple(distinct[id(message)] for message in messages)
