"""The ends of links as `ListRun` uses channels: `put` and `get`, for one step."""

import time
from collections.abc import Callable
from typing import Any

import jax

from jaxquard.runtime.cell import StepLost
from jaxquard.runtime.ray.note import Note
from jaxquard.runtime.ray.unacknowledged import Unacknowledged
from jaxquard.runtime.transports.protocol import Receiver, Sender, TransferStopped


class Outbox:
    """Where an actor puts what it sends to another."""

    def __init__(self, sender: Sender, step: int, unacknowledged: Unacknowledged) -> None:
        self._sender, self._step, self._unacknowledged = sender, step, unacknowledged
        self._number = 0

    def put(self, values: list[jax.Array] | None) -> None:
        """Sends a message; None, which says that this actor gave up, is the controller's to tell."""
        if values is None:
            return
        sent = self._sender.send(self._step, self._number, values)
        self._number += 1
        if sent is not None:
            for value in values:
                self._unacknowledged.add(value, sent)


class Inbox:
    """Where an actor gets what another sends to it.

    Attributes:
        arrivals: when each message was seen to be there.
    """

    def __init__(
        self, receiver: Receiver, step: int, source: int, *, should_stop: Callable[[], bool], note: Note
    ) -> None:
        self.arrivals: list[float] = []
        self._receiver, self._step, self._source = receiver, step, source
        self._should_stop, self._note = should_stop, note
        receiver.begin(step)

    def get(self) -> list[Any]:
        number = len(self.arrivals)
        self._note.write(f"waiting for message {number} from actor {self._source}")
        try:
            values = self._receiver.recv(self._step, number, should_stop=self._should_stop)
        except TransferStopped as stopped:
            raise StepLost from stopped
        self.arrivals.append(time.perf_counter())
        return values
