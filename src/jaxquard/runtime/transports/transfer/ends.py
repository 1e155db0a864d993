"""The two ends of a link over `jax.experimental.transfer`.

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
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from jaxquard.runtime.transports.base import are_ready, wait_until
from jaxquard.runtime.transports.layout import LinkLayout, describe_layout
from jaxquard.runtime.transports.progress import ReceiverProgress, SenderProgress
from jaxquard.runtime.transports.protocol import AlwaysTaken, Link, TransferError, TransferStopped
from jaxquard.runtime.transports.transfer.server import Exchange
from jaxquard.runtime.transports.wire import WireMessage, wire_messages

_VALUE, _ACKNOWLEDGEMENT = range(2)


def offer_number(program_id: int, step: int, link: Link, number: int, purpose: int) -> int:
    """The 64-bit number under which something is offered."""
    key = struct.pack("<6q", program_id, step, link.source, link.target, number, purpose)
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


class PulledAcknowledgement:
    """A message on its way; taken when the peer's token is here, or the peer is gone."""

    __slots__ = ("_token",)

    def __init__(self, token: Any) -> None:
        self._token = token

    def is_taken(self) -> bool:
        return self._token.is_ready()


class TransferSender:
    """Offers messages."""

    def __init__(
        self,
        link: Link,
        *,
        program_id: int,
        mesh: Mesh,
        exchange: Exchange,
        progress: SenderProgress,
    ) -> None:
        self._link = link
        self._program_id = program_id
        self._exchange = exchange
        self._progress = progress
        self._messages = wire_messages(link.messages, mesh)
        self.layout: LinkLayout = describe_layout(link.source, link.target, link.messages, mesh)

    def send(self, step: int, number: int, arrays: Sequence[jax.Array]) -> PulledAcknowledgement | AlwaysTaken | None:
        link = self._link
        parts = self._messages[number].split(arrays)
        if parts:
            self._exchange.offer(offer_number(self._program_id, step, link, number, _VALUE), parts)
        self._progress.note_sent(step, number, parts)
        if not link.may_donate[number]:
            return None
        if not parts:
            return AlwaysTaken()
        acknowledgement = offer_number(self._program_id, step, link, number, _ACKNOWLEDGEMENT)
        try:
            return PulledAcknowledgement(self._exchange.pull_token(link.target, acknowledgement))
        except jax.errors.JaxRuntimeError as cause:
            raise TransferError(link.describe_loss(step, number, cause)) from cause


class TransferReceiver:
    """Pulls messages, some of them ahead of need."""

    def __init__(
        self,
        link: Link,
        *,
        program_id: int,
        mesh: Mesh,
        exchange: Exchange,
        window: tuple[int, int],
        progress: ReceiverProgress,
    ) -> None:
        """Prepares to pull.

        Args:
            window: how many messages, and how many bytes, are asked for ahead at most.
        """
        self._link = link
        self._program_id = program_id
        self._exchange = exchange
        self._window_messages, self._window_bytes = window
        self._progress = progress
        self._messages = wire_messages(link.messages, mesh)
        self._step: int | None = None
        self._posted: deque[tuple[int, list[jax.Array]]] = deque()
        self._posted_bytes = 0
        self._next_post = 0
        self._next_recv = 0
        self.watch: Callable[[int, list[jax.Array]], None] | None = None
        self.layout: LinkLayout = describe_layout(link.source, link.target, link.messages, mesh)

    def begin(self, step: int) -> None:
        self._step = step
        self._posted.clear()
        self._posted_bytes = self._next_post = self._next_recv = 0
        self._post()

    def recv(self, step: int, number: int, *, should_stop: Callable[[], bool]) -> list[jax.Array]:
        assert (step, number) == (self._step, self._next_recv), "messages are received in order, after begin(step)"
        offer, parts = self._posted[0]
        if parts:
            self._wait(step, number, parts, should_stop)
        self._posted.popleft()
        self._exchange.settle(offer)
        self._posted_bytes -= self._messages[number].size_bytes
        self._next_recv += 1
        self._progress.note_received()
        if parts and self._link.may_donate[number]:
            acknowledgement = offer_number(self._program_id, step, self._link, number, _ACKNOWLEDGEMENT)
            self._exchange.offer_token(acknowledgement)
        self._post()
        return self._messages[number].join(parts)

    def _wait(self, step: int, number: int, parts: list[jax.Array], should_stop: Callable[[], bool]) -> None:
        self._progress.begin_wait(step, number)
        try:
            if not wait_until(lambda: are_ready(parts), should_stop=should_stop):
                raise TransferStopped(self._link.describe_stop(step, number))
            jax.block_until_ready(parts)
        except jax.errors.JaxRuntimeError as cause:
            raise TransferError(self._link.describe_loss(step, number, cause)) from cause
        finally:
            self._progress.end_wait()

    def _post(self) -> None:
        """Asks for the next messages, as far as the window allows, and for one if nothing is asked for."""
        assert self._step is not None
        while self._next_post < len(self._messages):
            message = self._messages[self._next_post]
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
        offer = offer_number(self._program_id, step, self._link, number, _VALUE)
        if not message.parts:
            return offer, []
        try:
            parts = self._exchange.pull(self._link.source, offer, list(message.parts))
        except jax.errors.JaxRuntimeError as cause:
            raise TransferError(self._link.describe_loss(step, number, cause)) from cause
        if self.watch is not None:
            self.watch(number, parts)
        return offer, parts
