"""The two ends of a channel over collectives; a `TransferThread` does the work, in its own time."""

from collections.abc import Callable

import jax
from jax.sharding import Mesh

from jaxquard.runtime.transports.base import BaseReceiver, BaseSender, ChannelEnd, ProgressT
from jaxquard.runtime.transports.collective.rendezvous import Round, TransferState, TransferThread
from jaxquard.runtime.transports.progress import ReceiverProgress, SenderProgress
from jaxquard.runtime.transports.protocol import Channel, TransferStopped
from jaxquard.runtime.transports.wire import local_devices

FindRound = Callable[[int, int], Round]
"""Returns the round of (program id, step), which begins if it is new."""


class CollectiveEnd(ChannelEnd[ProgressT]):
    """An end that works through the thread of its process.

    Attributes:
        pair: the source, the target and the number of devices that each has: the key of their collective.
    """

    by_device = True

    def __init__(
        self,
        channel: Channel,
        *,
        program_id: int,
        mesh: Mesh,
        progress: ProgressT,
        find_round: FindRound,
        thread: TransferThread,
    ) -> None:
        super().__init__(channel, program_id=program_id, mesh=mesh, progress=progress)
        self._find_round, self._thread = find_round, thread
        self.pair = (channel.source, channel.target, len(local_devices(mesh)))

    def _state(self, step: int, number: int) -> TransferState:
        return self._find_round(self.program_id, step).by_order[self.channel.orders[number]]


class CollectiveSender(CollectiveEnd[SenderProgress], BaseSender):
    """Gives messages to the thread."""

    def _post(self, step: int, number: int, parts: list[jax.Array]) -> None:
        state = self._state(step, number)
        state.parts = parts
        state.is_asked = True
        self._thread.wake()

    def _confirm(self, step: int, number: int) -> TransferState:
        return self._state(step, number)


class CollectiveReceiver(CollectiveEnd[ReceiverProgress], BaseReceiver):
    """Takes messages from the thread.

    Both sides enter a collective when the message is wanted. None is on its way before, so `watch` is never called.
    """

    def begin(self, step: int) -> None:
        self._find_round(self.program_id, step)

    def _take(self, step: int, number: int, should_stop: Callable[[], bool]) -> list[jax.Array]:
        if not self.messages[number].parts:
            return []
        state = self._state(step, number)
        state.is_asked = True
        self._thread.wake()
        try:
            self._wait(step, number, state.is_taken, should_stop)
        except TransferStopped:
            # The next step then passes over it.
            state.is_asked = False
            raise
        if state.error is not None:
            raise self._loss(step, number, state.error) from state.error
        assert state.parts is not None
        parts, state.parts = state.parts, None
        return parts
