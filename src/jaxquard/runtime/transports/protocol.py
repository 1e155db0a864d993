"""The protocol that every transport keeps: it carries messages between actors that are processes.

A `Channel` is all that one actor sends to another in one step, as a list of messages. Each process of the
source opens a `Sender` for it, each process of the target a `Receiver`; process r of one actor talks to
process r of the other. Before the first step, whoever holds both ends compares their layouts
(`layout.compare_layouts`).

Every transport promises:

- Messages of a channel arrive in order, bit for bit, or `recv` raises. They are matched by (program id, step,
  number). The caller numbers all steps, of all programs, by one count that grows and that all actors
  share; so what is left of an abandoned step never meets a later one.
- `send` returns at once. The array stays alive until the peer has it, but may only be donated once
  `Sent.is_taken`.
- `recv` returns arrays that have arrived, never pending ones: computations that wait for transfers inside
  XLA can block each other (design decision 5).
- `recv` asks `should_stop` all the time and gives up when it says yes.

An end belongs to one thread at a time; `Transport.report` can be called from any.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax
from jax.sharding import Mesh

from jaxquard.errors import JaxquardError
from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.transports.layout import ChannelLayout


class TransferError(JaxquardError, RuntimeError):
    """A message was lost: its sender ended, or the transport reported an error."""


class TransferStopped(JaxquardError, RuntimeError):
    """A wait for a message was given up because the caller asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """All messages of one step from one actor to another, in order.

    Attributes:
        messages: for each message the types of its arrays, as the target holds them; the source gives
            them this sharding, on its own mesh, before it sends them.
        orders: for each message its place in the program's global order (`ir.program.order`): increasing
            in a channel, unique in a program.
        may_donate: for each message, whether the source may donate its buffers afterwards, and so
            must know when the peer has them.
    """

    source: int
    target: int
    messages: tuple[tuple[ArrayType, ...], ...]
    orders: tuple[int, ...]
    may_donate: tuple[bool, ...]

    def __post_init__(self) -> None:
        assert len(self.messages) == len(self.orders) == len(self.may_donate)
        assert all(first < second for first, second in zip(self.orders, self.orders[1:], strict=False))

    def describe_loss(self, step: int, number: int, cause: object) -> str:
        return f"{self._describe(step, number)} did not arrive: {cause}"

    def describe_stop(self, step: int, number: int) -> str:
        return f"stopped waiting for {self._describe(step, number)}."

    def _describe(self, step: int, number: int) -> str:
        types = ", ".join(map(str, self.messages[number])) or "nothing"
        return f"message {number} ({types}) of step {step} from actor {self.source} to actor {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStatus:
    """A message of a channel, and how long ago, at the time of the report, it was sent or first waited for."""

    peer: int
    program_id: int
    step: int
    number: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportReport:
    """The progress of a transport, for a watchdog that sees all actors.

    If an actor waits for a message that is not after the last one that its peer has sent, that message is
    under way, and has been for at least the smaller of the two ages: beyond some limit, it is lost.

    Attributes:
        sent: for each sender its last message whose values are computed, and since when they are.
        waiting: for each receiver that waits, the message it waits for.
        num_sent: for each peer, the messages sent to it.
        num_received: for each peer, the messages received from it.
    """

    sent: tuple[MessageStatus, ...]
    waiting: tuple[MessageStatus, ...]
    num_sent: Mapping[int, int]
    num_received: Mapping[int, int]


class Sent(Protocol):
    """A message on its way."""

    def is_taken(self) -> bool:
        """Returns True once the peer's process has the bytes, so that the buffers may be donated here."""
        ...


class AlwaysTaken:
    """A message of no bytes."""

    __slots__ = ()

    def is_taken(self) -> bool:
        return True


class Sender(Protocol):
    """The source's end of a channel."""

    @property
    def layout(self) -> ChannelLayout: ...

    def send(self, step: int, number: int, arrays: Sequence[jax.Array]) -> Sent | None:
        """Sends a message; returns None if the channel says that its buffers are never donated.

        Raises:
            LayoutError: if an array is not laid out as the channel says.
        """
        ...


class Receiver(Protocol):
    """The target's end of a channel.

    Attributes:
        watch: if set, called with the number of each message that is asked for ahead, and with objects whose
            `block_until_ready` returns when it has arrived. A transport that does not ask ahead does not call it.
    """

    watch: Callable[[int, list[Any]], None] | None

    @property
    def layout(self) -> ChannelLayout: ...

    def begin(self, step: int) -> None:
        """Starts to receive the first messages of a step; what is left of the step before is given up."""
        ...

    def recv(self, step: int, number: int, *, should_stop: Callable[[], bool]) -> list[jax.Array]:
        """Waits until a message, the next of the step, has arrived, and starts to receive those after it.

        Raises:
            TransferError: if the transport says that the message will not come.
            TransferStopped: if `should_stop` says so first.
        """
        ...


class Transport(Protocol):
    """One process's access to all peers.

    Attributes:
        survives_loss: whether the other processes can go on when one is lost; otherwise all must be
            started again.
    """

    survives_loss: ClassVar[bool]

    @property
    def address(self) -> str:
        """The address that peers connect to."""
        ...

    def connect(self, peers: Mapping[int, Sequence[str]]) -> None:
        """Connects to peers, given the addresses of each actor's processes by rank, this one's too."""
        ...

    def open_sender(self, channel: Channel, *, program_id: int, mesh: Mesh) -> Sender:
        """Opens the source's end of a channel, whose arrays are on this actor's mesh."""
        ...

    def open_receiver(self, channel: Channel, *, program_id: int, mesh: Mesh) -> Receiver:
        """Opens the target's end of a channel, whose arrays come to this actor's mesh."""
        ...

    def start(self, program_id: int) -> None:
        """Prepares the first step of a program, once all its channels of this process are open.

        Every process of every actor in the program calls it, as it may wait for the others.
        """
        ...

    def report(self) -> TransportReport: ...

    def close(self) -> None:
        """Drops messages on their way, also if ends of channels are still held. No end can be used any more.

        After an abandoned step, closing and opening anew frees what nobody took.
        """
        ...
