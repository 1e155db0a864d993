"""The two ends of a channel over `jax.experimental.transfer`.

An acknowledgement is an offer of one byte in the other direction, made when the value has arrived. The
sender pulls it at once, and looks whether it is there. It costs as much as a small message (0.1 ms of
work, not of waiting), so only messages whose buffers may be donated have one: for the others the offer
itself holds the buffers as long as needed.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from jaxquard.runtime.transports.base import BaseSender, are_ready, wait_until
from jaxquard.runtime.transports.peers.secret import MeshSecret
from jaxquard.runtime.transports.progress import ReceiverProgress, SenderProgress
from jaxquard.runtime.transports.protocol import Channel
from jaxquard.runtime.transports.pull.numbers import ACKNOWLEDGEMENT, offer_number
from jaxquard.runtime.transports.pull.receiver import PullReceiver
from jaxquard.runtime.transports.transfer.server import TransferServer
from jaxquard.runtime.transports.wire import WireMessage


class PulledAcknowledgement:
    """A message on its way; taken when the peer's token is here, or the peer is gone."""

    __slots__ = ("_token",)

    def __init__(self, token: Any) -> None:
        self._token = token

    def is_taken(self) -> bool:
        return self._token.is_ready()


class PendingArrays:
    """Arrays that JAX makes ready when they have arrived."""

    __slots__ = ("_arrays", "_number", "_server")

    def __init__(self, arrays: list[jax.Array], server: TransferServer, number: int) -> None:
        self._arrays, self._server, self._number = arrays, server, number

    def is_ready(self) -> bool:
        return are_ready(self._arrays)

    def wait(self, *, should_stop: Callable[[], bool]) -> bool:
        return wait_until(self.is_ready, should_stop=should_stop)

    def take(self) -> list[jax.Array]:
        jax.block_until_ready(self._arrays)
        self._server.settle(self._number)
        return self._arrays

    def watched(self) -> list[jax.Array]:
        return self._arrays


class TransferSender(BaseSender):
    """Offers messages."""

    def __init__(
        self,
        channel: Channel,
        *,
        program_id: int,
        mesh: Mesh,
        progress: SenderProgress,
        server: TransferServer,
        secret: MeshSecret,
    ) -> None:
        super().__init__(channel, program_id=program_id, mesh=mesh, progress=progress)
        self._server, self._secret = server, secret

    def _post(self, step: int, number: int, parts: list[jax.Array]) -> None:
        self._server.offer(offer_number(self._secret, self.program_id, step, self.channel, number), parts)

    def _confirm(self, step: int, number: int) -> PulledAcknowledgement:
        token = offer_number(self._secret, self.program_id, step, self.channel, number, ACKNOWLEDGEMENT)
        try:
            return PulledAcknowledgement(self._server.pull_token(self.channel.target, token))
        except jax.errors.JaxRuntimeError as cause:
            raise self._loss(step, number, cause) from cause


class TransferReceiver(PullReceiver):
    """Pulls messages, and acknowledges those whose buffers the sender may donate."""

    def __init__(
        self,
        channel: Channel,
        *,
        program_id: int,
        mesh: Mesh,
        progress: ReceiverProgress,
        window: tuple[int, int],
        server: TransferServer,
        secret: MeshSecret,
    ) -> None:
        super().__init__(channel, program_id=program_id, mesh=mesh, progress=progress, window=window)
        self._server, self._secret = server, secret

    def _start_pull(self, step: int, number: int, message: WireMessage) -> PendingArrays:
        offer = offer_number(self._secret, self.program_id, step, self.channel, number)
        return PendingArrays(self._server.pull(self.channel.source, offer, list(message.parts)), self._server, offer)

    def _after_receipt(self, step: int, number: int) -> None:
        if self.messages[number].parts and self.channel.may_donate[number]:
            token = offer_number(self._secret, self.program_id, step, self.channel, number, ACKNOWLEDGEMENT)
            self._server.offer_token(token)
        super()._after_receipt(step, number)
