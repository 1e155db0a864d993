"""The target's end of a channel whose messages are asked for: some of them ahead, so that transfers overlap compute.

No computation ever gets a pending array: more than 32 of them in flight block each other.
"""

import abc
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from jaxquard.runtime.transports.base import BaseReceiver
from jaxquard.runtime.transports.progress import ReceiverProgress
from jaxquard.runtime.transports.protocol import Channel
from jaxquard.runtime.transports.wire import WireMessage

LOSSES = (jax.errors.JaxRuntimeError, OSError)
"""What a transport raises when a message will not come."""


class Pull(Protocol):
    """A message that was asked for."""

    def is_ready(self) -> bool:
        """Returns True once it has arrived, or is known never to come."""
        ...

    def wait(self, *, should_stop: Callable[[], bool]) -> bool:
        """Waits until it is ready; returns False if it should stop before that."""
        ...

    def take(self) -> list[jax.Array]:
        """Returns the arrays, which have arrived.

        Raises:
            JaxRuntimeError, OSError: if they never will.
        """
        ...

    def watched(self) -> list[Any]:
        """Returns objects whose `block_until_ready` returns when it is ready."""
        ...


class NothingToPull:
    """A message of no bytes."""

    def is_ready(self) -> bool:
        return True

    def wait(self, *, should_stop: Callable[[], bool]) -> bool:
        return True

    def take(self) -> list[jax.Array]:
        return []

    def watched(self) -> list[Any]:
        return []


class PullReceiver(BaseReceiver, abc.ABC):
    """Pulls messages, some of them ahead of need."""

    def __init__(
        self,
        channel: Channel,
        *,
        program_id: int,
        mesh: Mesh,
        progress: ReceiverProgress,
        window: tuple[int, int],
    ) -> None:
        """Prepares to pull.

        Args:
            window: the maximum number of messages, and of bytes, that are pulled ahead of need.
        """
        super().__init__(channel, program_id=program_id, mesh=mesh, progress=progress)
        self._window_messages, self._window_bytes = window
        self._step: int | None = None
        self._posted: deque[Pull] = deque()
        self._posted_bytes = 0
        self._next_post = 0
        self._next_recv = 0

    def begin(self, step: int) -> None:
        self._step = step
        self._posted.clear()
        self._posted_bytes = self._next_post = self._next_recv = 0
        self._post_pulls()

    @abc.abstractmethod
    def _start_pull(self, step: int, number: int, message: WireMessage) -> Pull:
        """Asks for a message of one byte or more."""

    def _take(self, step: int, number: int, should_stop: Callable[[], bool]) -> list[jax.Array]:
        assert (step, number) == (self._step, self._next_recv), "messages are received in order, after begin(step)"
        pull = self._posted[0]
        if not pull.is_ready():
            self._wait_by(step, number, lambda: pull.wait(should_stop=should_stop))
        try:
            parts = pull.take()
        except LOSSES as cause:
            raise self._loss(step, number, cause) from cause
        self._posted.popleft()
        self._posted_bytes -= self.messages[number].size_bytes
        self._next_recv += 1
        return parts

    def _after_receipt(self, step: int, number: int) -> None:
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

    def _pull(self, step: int, number: int, message: WireMessage) -> Pull:
        if not message.parts:
            return NothingToPull()
        try:
            pull = self._start_pull(step, number, message)
        except LOSSES as cause:
            raise self._loss(step, number, cause) from cause
        if self.watch is not None:
            self.watch(number, pull.watched())
        return pull
