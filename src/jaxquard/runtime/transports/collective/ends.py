"""The two ends of a link over collectives; `transfer_thread` does the work, in its own time."""

from collections.abc import Callable, Sequence

import jax
from jax.sharding import Mesh

from jaxquard.runtime.transports.base import wait_until
from jaxquard.runtime.transports.collective.rendezvous import Round, TransferThread
from jaxquard.runtime.transports.layout import LinkLayout, describe_layout
from jaxquard.runtime.transports.progress import ReceiverProgress, SenderProgress
from jaxquard.runtime.transports.protocol import AlwaysTaken, Link, Sent, TransferError, TransferStopped
from jaxquard.runtime.transports.wire import local_devices, wire_messages

FindRound = Callable[[int, int], Round]


class CollectiveSender:
    """Gives messages to the thread."""

    def __init__(
        self,
        link: Link,
        *,
        program_id: int,
        mesh: Mesh,
        find_round: FindRound,
        thread: TransferThread,
        progress: SenderProgress,
    ) -> None:
        """Prepares to send.

        Args:
            find_round: the round of (program id, step), which begins if it is new.
        """
        self.link = link
        self.program_id = program_id
        self._find_round = find_round
        self._thread = thread
        self._progress = progress
        self.pair = (link.source, link.target, len(local_devices(mesh)))
        self.messages = wire_messages(link.messages, mesh, by_device=True)
        self.layout: LinkLayout = describe_layout(link.source, link.target, link.messages, mesh)

    def send(self, step: int, number: int, arrays: Sequence[jax.Array]) -> Sent | None:
        parts = self.messages[number].split(arrays)
        self._progress.note_sent(step, number, parts)
        sent: Sent = AlwaysTaken()
        if parts:
            slot = self._find_round(self.program_id, step).by_order[self.link.orders[number]]
            slot.parts = parts
            slot.is_asked = True
            self._thread.wake()
            sent = slot
        return sent if self.link.may_donate[number] else None


class CollectiveReceiver:
    """Takes messages from the thread."""

    def __init__(
        self,
        link: Link,
        *,
        program_id: int,
        mesh: Mesh,
        find_round: FindRound,
        thread: TransferThread,
        progress: ReceiverProgress,
    ) -> None:
        """Prepares to receive.

        Args:
            find_round: the round of (program id, step), which begins if it is new.
        """
        self.link = link
        self.program_id = program_id
        self._find_round = find_round
        self._thread = thread
        self._progress = progress
        self.pair = (link.source, link.target, len(local_devices(mesh)))
        self.messages = wire_messages(link.messages, mesh, by_device=True)
        # Both sides enter a rendezvous when the message is wanted: none is on its way before.
        self.watch: Callable[[int, list[jax.Array]], None] | None = None
        self.layout: LinkLayout = describe_layout(link.source, link.target, link.messages, mesh)

    def begin(self, step: int) -> None:
        self._find_round(self.program_id, step)

    def recv(self, step: int, number: int, *, should_stop: Callable[[], bool]) -> list[jax.Array]:
        message = self.messages[number]
        parts = self._take(step, number, should_stop) if message.parts else []
        self._progress.note_received()
        return message.join(parts)

    def _take(self, step: int, number: int, should_stop: Callable[[], bool]) -> list[jax.Array]:
        slot = self._find_round(self.program_id, step).by_order[self.link.orders[number]]
        slot.is_asked = True
        self._thread.wake()
        self._progress.begin_wait(step, number)
        try:
            if not wait_until(slot.is_taken, should_stop=should_stop):
                # The next step then passes over it.
                slot.is_asked = False
                raise TransferStopped(self.link.describe_stop(step, number))
        finally:
            self._progress.end_wait()
        if slot.error is not None:
            raise TransferError(self.link.describe_loss(step, number, slot.error)) from slot.error
        assert slot.parts is not None
        parts, slot.parts = slot.parts, None
        return parts
