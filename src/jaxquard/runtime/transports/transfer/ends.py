"""The two ends of a channel over `jax.experimental.transfer`.

Numbers of offers are digests of (program id, step, source, target, message, purpose): the chance that two of
a thousand outstanding ones meet in the whole of a long training is below one in a million, and no counter
has to be agreed on.

The receiver keeps some pulls posted ahead of need, so that transfers overlap compute. No computation ever
gets a pending array: more than 32 of them in flight block each other.

An acknowledgement is an offer of one byte in the other direction, made when the value has arrived. The
sender pulls it at once, and looks whether it is there. It costs as much as a small message (0.1 ms of
work, not of waiting), so only messages whose buffers may be donated have one: for the others the offer
itself holds the buffers as long as needed.
"""

import hashlib
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from jaxquard.runtime.transports.base import BaseReceiver, BaseSender, ChannelEnd, ProgressT, are_ready
from jaxquard.runtime.transports.progress import ReceiverProgress, SenderProgress
from jaxquard.runtime.transports.protocol import Channel
from jaxquard.runtime.transports.transfer.server import TransferServer
from jaxquard.runtime.transports.wire import WireMessage

_VALUE, _ACKNOWLEDGEMENT = range(2)


def offer_number(program_id: int, step: int, channel: Channel, number: int, purpose: int) -> int:
    """Computes the 64-bit number under which something is offered."""
    key = struct.pack("<6q", program_id, step, channel.source, channel.target, number, purpose)
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


class PulledAcknowledgement:
    """A message on its way; taken when the peer's token is here, or the peer is gone."""

    __slots__ = ("_token",)

    def __init__(self, token: Any) -> None:
        self._token = token

    def is_taken(self) -> bool:
        return self._token.is_ready()


class TransferEnd(ChannelEnd[ProgressT]):
    """An end that offers and pulls through the server of its process."""

    def __init__(
        self,
        channel: Channel,
        *,
        program_id: int,
        mesh: Mesh,
        progress: ProgressT,
        server: TransferServer,
    ) -> None:
        super().__init__(channel, program_id=program_id, mesh=mesh, progress=progress)
        self._server = server

    def _number(self, step: int, number: int, purpose: int) -> int:
        return offer_number(self.program_id, step, self.channel, number, purpose)


class TransferSender(TransferEnd[SenderProgress], BaseSender):
    """Offers messages."""

    def _post(self, step: int, number: int, parts: list[jax.Array]) -> None:
        self._server.offer(self._number(step, number, _VALUE), parts)

    def _confirm(self, step: int, number: int) -> PulledAcknowledgement:
        acknowledgement = self._number(step, number, _ACKNOWLEDGEMENT)
        try:
            return PulledAcknowledgement(self._server.pull_token(self.channel.target, acknowledgement))
        except jax.errors.JaxRuntimeError as cause:
            raise self._loss(step, number, cause) from cause


class TransferReceiver(TransferEnd[ReceiverProgress], BaseReceiver):
    """Pulls messages, some of them ahead of need."""

    def __init__(
        self,
        channel: Channel,
        *,
        program_id: int,
        mesh: Mesh,
        progress: ReceiverProgress,
        server: TransferServer,
        window: tuple[int, int],
    ) -> None:
        """Prepares to pull.

        Args:
            window: the maximum number of messages, and of bytes, that are pulled ahead of need.
        """
        super().__init__(channel, program_id=program_id, mesh=mesh, progress=progress, server=server)
        self._window_messages, self._window_bytes = window
        self._step: int | None = None
        self._posted: deque[tuple[int, list[jax.Array]]] = deque()
        self._posted_bytes = 0
        self._next_post = 0
        self._next_recv = 0

    def begin(self, step: int) -> None:
        self._step = step
        self._posted.clear()
        self._posted_bytes = self._next_post = self._next_recv = 0
        self._post_pulls()

    def _take(self, step: int, number: int, should_stop: Callable[[], bool]) -> list[jax.Array]:
        assert (step, number) == (self._step, self._next_recv), "messages are received in order, after begin(step)"
        offer, parts = self._posted[0]
        if parts:
            self._wait(step, number, lambda: are_ready(parts), should_stop)
            try:
                jax.block_until_ready(parts)
            except jax.errors.JaxRuntimeError as cause:
                raise self._loss(step, number, cause) from cause
        self._posted.popleft()
        self._server.settle(offer)
        self._posted_bytes -= self.messages[number].size_bytes
        self._next_recv += 1
        return parts

    def _after_receipt(self, step: int, number: int) -> None:
        """Acknowledges a message whose buffers the sender may donate, and pulls further ones."""
        if self.messages[number].parts and self.channel.may_donate[number]:
            acknowledgement = self._number(step, number, _ACKNOWLEDGEMENT)
            self._server.offer_token(acknowledgement)
        self._post_pulls()

    def _post_pulls(self) -> None:
        """Pulls the next messages, as far as the window allows, and one if none is pulled."""
        assert self._step is not None
        while self._next_post < len(self.messages):
            message = self.messages[self._next_post]
            has_room = (
                len(self._posted) < self._window_messages
                and self._posted_bytes + message.size_bytes <= self._window_bytes
            )
            if self._posted and not has_room:
                return
            self._posted.append(self._pull(self._step, self._next_post, message))
            self._posted_bytes += message.size_bytes
            self._next_post += 1

    def _pull(self, step: int, number: int, message: WireMessage) -> tuple[int, list[jax.Array]]:
        offer = self._number(step, number, _VALUE)
        if not message.parts:
            return offer, []
        try:
            parts = self._server.pull(self.channel.source, offer, list(message.parts))
        except jax.errors.JaxRuntimeError as cause:
            raise self._loss(step, number, cause) from cause
        if self.watch is not None:
            self.watch(number, parts)
        return offer, parts
