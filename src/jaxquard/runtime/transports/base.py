"""Shared by all transports: a process's ends of channels, which number, check, count and wait alike.

A transport says only how it differs: how a message is posted and taken (`_post`, `_take`), how the peer's
confirmation is seen (`_confirm`), and how two processes connect.

Waiting polls: nothing in JAX calls back when an array is ready, and a blocking wait cannot be given up. A small message
takes about 0.1 ms, and a sleep at least 0.07, so the first looks only yield the core to whoever wants it: on two
busy cores a round trip of 1 KB then took 1.2 to 1.7 times that of the bare transport with a blocking wait, and
1.8 with sleeps alone. The sleeps after them grow, as a wait that has been long may well be longer.
"""

import abc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import jax
from jax.sharding import Mesh

from jaxquard.runtime.transports.layout import describe_layout
from jaxquard.runtime.transports.peers.secret import MeshSecret
from jaxquard.runtime.transports.progress import ReceiverProgress, SenderProgress, TransportProgress
from jaxquard.runtime.transports.protocol import (
    AlwaysTaken,
    Channel,
    Receiver,
    Sender,
    Sent,
    TransferError,
    TransferStopped,
    TransportReport,
)
from jaxquard.runtime.transports.wire import wire_messages

ProgressT = TypeVar("ProgressT", SenderProgress, ReceiverProgress)

WINDOW_MESSAGES = 4
WINDOW_BYTES = 256 * 2**20
SPIN_S = 200e-6
FIRST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 0.5e-3


def wait_until(is_done: Callable[[], bool], *, should_stop: Callable[[], bool]) -> bool:
    """Returns True once it is done, False if it should stop before that."""
    if is_done():
        return True
    end_s = time.monotonic() + SPIN_S
    while time.monotonic() < end_s:
        os.sched_yield()
        if is_done():
            return True
    sleep_s = FIRST_SLEEP_S
    while not is_done():
        if should_stop():
            return False
        time.sleep(sleep_s)
        sleep_s = min(1.25 * sleep_s, LONGEST_SLEEP_S)
    return True


def are_ready(arrays: Sequence[Any]) -> bool:
    """Returns True once all of these arrays have arrived or failed; there are no random keys among them."""
    return all(array.is_ready() for array in arrays)


class ChannelEnd(Generic[ProgressT]):
    """One end of a channel.

    Attributes:
        messages: the form in which each message crosses.
        layout: where this end holds the arrays, to be compared with the other end.
    """

    by_device: ClassVar[bool] = False
    """True if each device's shard crosses as a separate array."""

    def __init__(self, channel: Channel, *, program_id: int, mesh: Mesh, progress: ProgressT) -> None:
        self.channel = channel
        self.program_id = program_id
        self._progress = progress
        self.messages = wire_messages(channel.messages, mesh, by_device=self.by_device)
        self.layout = describe_layout(channel.source, channel.target, channel.messages, mesh)

    def _loss(self, step: int, number: int, cause: BaseException) -> TransferError:
        return TransferError(self.channel.describe_loss(step, number, cause))


class BaseSender(ChannelEnd[SenderProgress], abc.ABC):
    """The source's end of a channel; see `protocol.Sender`."""

    def send(self, step: int, number: int, arrays: Sequence[jax.Array]) -> Sent | None:
        parts = self.messages[number].split(arrays)
        if parts:
            self._post(step, number, parts)
        self._progress.note_sent(step, number, parts)
        if not self.channel.may_donate[number]:
            return None
        return self._confirm(step, number) if parts else AlwaysTaken()

    @abc.abstractmethod
    def _post(self, step: int, number: int, parts: list[jax.Array]) -> None:
        """Starts to send a message."""

    @abc.abstractmethod
    def _confirm(self, step: int, number: int) -> Sent:
        """Returns an object that says when the peer has a message, so that its buffers may be donated."""


class BaseReceiver(ChannelEnd[ReceiverProgress], abc.ABC):
    """The target's end of a channel; see `protocol.Receiver`."""

    watch: Callable[[int, list[Any]], None] | None = None

    @abc.abstractmethod
    def begin(self, step: int) -> None:
        """See `protocol.Receiver.begin`."""

    def recv(self, step: int, number: int, *, should_stop: Callable[[], bool]) -> list[jax.Array]:
        parts = self._take(step, number, should_stop)
        self._progress.note_received()
        self._after_receipt(step, number)
        return self.messages[number].join(parts)

    @abc.abstractmethod
    def _take(self, step: int, number: int, should_stop: Callable[[], bool]) -> list[jax.Array]:
        """Waits for the parts of a message, of which there may be none."""

    def _after_receipt(self, step: int, number: int) -> None:
        """Called when a message has arrived, before it is returned."""

    def _wait(self, step: int, number: int, is_done: Callable[[], bool], should_stop: Callable[[], bool]) -> None:
        """Waits until a message has arrived or failed; others see meanwhile that it is waited for."""
        self._wait_by(step, number, lambda: wait_until(is_done, should_stop=should_stop))

    def _wait_by(self, step: int, number: int, wait: Callable[[], bool]) -> None:
        """Waits as `_wait` does, by a function that returns False if it was to stop."""
        self._progress.begin_wait(step, number)
        try:
            if not wait():
                raise TransferStopped(self.channel.describe_stop(step, number))
        finally:
            self._progress.end_wait()


class BaseTransport(abc.ABC):
    """One process's access to the processes of equal rank in all other actors; see `protocol.Transport`."""

    survives_loss: ClassVar[bool]

    def __init__(
        self,
        devices: Sequence[jax.Device],
        *,
        actor: int,
        secret: MeshSecret,
        host: str = "127.0.0.1",
        on_network: bool = False,
        folder: str | None = None,
        window_messages: int = WINDOW_MESSAGES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        """Starts to listen.

        Args:
            devices: this process's own; the actor's mesh has the first of them, or all, in this order.
            actor: that this process is part of.
            secret: of the mesh; all its processes have it.
            host: the address of this host under which peers reach it; nothing listens on others.
            on_network: peers may be on other hosts; otherwise no port is opened where a socket in a folder will do.
            folder: in which to make such a folder; None: the system's for temporary files.
            window_messages: the maximum number of messages that are under way to a receiver ahead of need, 1 or more.
            window_bytes: how many bytes they may take; a larger message comes alone.
        """
        self._devices = tuple(devices)
        self._actor = actor
        self._window = (max(1, window_messages), window_bytes)
        self._progress = TransportProgress()
        self._secret = secret
        self._on_network, self._folder = on_network, folder
        self._listen(host)

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """The address that peers connect to."""

    def connect(self, peers: Mapping[int, Sequence[str]]) -> None:
        """Connects to the process of equal rank of each other actor."""
        rank = peers[self._actor].index(self.address)
        self._connect({actor: addresses[rank] for actor, addresses in peers.items() if actor != self._actor})

    def open_sender(self, channel: Channel, *, program_id: int, mesh: Mesh) -> Sender:
        progress = self._progress.add_sender(peer=channel.target, program_id=program_id)
        return self._make_sender(channel, program_id=program_id, mesh=mesh, progress=progress)

    def open_receiver(self, channel: Channel, *, program_id: int, mesh: Mesh) -> Receiver:
        progress = self._progress.add_receiver(peer=channel.source, program_id=program_id)
        return self._make_receiver(channel, program_id=program_id, mesh=mesh, progress=progress)

    def start(self, program_id: int) -> None:  # noqa: B027  Most transports have nothing to prepare.
        """See `protocol.Transport.start`."""

    def report(self) -> TransportReport:
        return self._progress.report()

    @abc.abstractmethod
    def close(self) -> None:
        """See `protocol.Transport.close`."""

    @abc.abstractmethod
    def _listen(self, host: str) -> None:
        """Opens the address of this process."""

    @abc.abstractmethod
    def _connect(self, peers: Mapping[int, str]) -> None:
        """Connects to one process of each other actor."""

    @abc.abstractmethod
    def _make_sender(self, channel: Channel, *, program_id: int, mesh: Mesh, progress: SenderProgress) -> Sender: ...

    @abc.abstractmethod
    def _make_receiver(
        self, channel: Channel, *, program_id: int, mesh: Mesh, progress: ReceiverProgress
    ) -> Receiver: ...
