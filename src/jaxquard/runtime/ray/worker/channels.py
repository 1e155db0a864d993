"""The ends of channels as `ListRun` uses them: `put` and `get`, for one step.

Arrays that were sent and may not have left yet must not be donated (design decision 5): `Unacknowledged`.
"""

import time
import weakref
from collections.abc import Callable
from typing import Any

import jax

from jaxquard.runtime.program.timings import Watcher
from jaxquard.runtime.ray.worker.self_report import ActivityFile
from jaxquard.runtime.result_cell import StepLost
from jaxquard.runtime.transfer import copy_array
from jaxquard.runtime.transports.protocol import Receiver, Sender, Sent, TransferStopped


class Unacknowledged:
    """The arrays that this process has sent and its peers have not confirmed; one may go to several."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[weakref.ref[jax.Array], list[Sent]]] = {}

    def add(self, array: jax.Array, sent: Sent) -> None:
        waiting = self._waiting(array)
        waiting.append(sent)
        self._sent[id(array)] = (weakref.ref(array), waiting)

    def to_donate(self, array: jax.Array) -> jax.Array:
        """Returns the array if its buffer may be donated, else a copy: waiting for a peer here could block both."""
        waiting = self._waiting(array)
        return array if all(sent.is_taken() for sent in waiting) else copy_array(array)

    def tidy(self) -> None:
        """Forgets arrays that have arrived, or are gone here."""
        self._sent = {
            key: (reference, waiting)
            for key, (reference, waiting) in self._sent.items()
            if reference() is not None and not all(sent.is_taken() for sent in waiting)
        }

    def clear(self) -> None:
        self._sent = {}

    def _waiting(self, array: jax.Array) -> list[Sent]:
        reference, waiting = self._sent.get(id(array), (None, []))
        return waiting if reference is not None and reference() is array else []


class Outbox:
    """Sends the messages of one step to another actor."""

    def __init__(self, sender: Sender, step: int, unacknowledged: Unacknowledged) -> None:
        self._sender, self._step, self._unacknowledged = sender, step, unacknowledged
        self._number = 0

    def put(self, values: list[jax.Array] | None) -> None:
        """Sends a message; None, which says that this actor gave up, is not sent: the controller stops the others."""
        if values is None:
            return
        try:
            sent = self._sender.send(self._step, self._number, values)
        except TransferStopped as stopped:
            raise StepLost from stopped
        self._number += 1
        if sent is not None:
            for value in values:
                self._unacknowledged.add(value, sent)


class Inbox:
    """Receives the messages of one step from another actor.

    Attributes:
        ends: if arrivals are measured, takes when each message had arrived, by its number.
    """

    def __init__(
        self,
        receiver: Receiver,
        step: int,
        source: int,
        *,
        should_stop: Callable[[], bool],
        activity: ActivityFile,
        ends: dict[int, float] | None = None,
    ) -> None:
        self._receiver, self._step, self._source = receiver, step, source
        self._should_stop, self._activity = should_stop, activity
        self._num_received = 0
        self.ends = ends
        self._watcher = None if ends is None else Watcher(ends)
        receiver.watch = None if self._watcher is None else self._watcher.watch
        receiver.begin(step)

    def get(self) -> list[Any]:
        number = self._num_received
        self._activity.write(f"waiting for message {number} from actor {self._source}")
        try:
            values = self._receiver.recv(self._step, number, should_stop=self._should_stop)
        except TransferStopped as stopped:
            raise StepLost from stopped
        self._num_received += 1
        if self.ends is not None:
            # At the latest; the watcher may have seen it come before.
            self.ends.setdefault(number, time.perf_counter())
        return values

    def close(self) -> None:
        """Ends the watching; a message that has not arrived by now never will."""
        self._receiver.watch = None
        if self._watcher is not None:
            self._watcher.leave()
