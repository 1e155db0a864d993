"""Keeps what an actor's process does in the order in which the controller asked for it.

Ray may start calls out of order, as an argument that lies in its object store is waited for. So each call has a turn,
and waits for it. When an epoch ends, because something failed, whoever still waits in it gives up.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from jaxquard.runtime.ray.messages import Turn


class TurnOver(Exception):
    """The epoch of a turn has ended."""


class Turns:
    """The order of one process.

    Attributes:
        epoch: the one that counts; turns of another are over.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._next = 0
        self._is_held = False
        self._changed = threading.Condition()

    @contextmanager
    def take(self, turn: Turn) -> Iterator[None]:
        """Waits for a turn and holds it; raises `TurnOver` if it will never come."""
        with self._changed:
            self._changed.wait_for(lambda: turn.epoch < self.epoch or self._is_next(turn))
            if turn.epoch < self.epoch:
                raise TurnOver
            self._is_held = True
        try:
            yield
        finally:
            with self._changed:
                self._is_held = False
                if turn.epoch == self.epoch:
                    self._next = turn.number + 1
                self._changed.notify_all()

    def _is_next(self, turn: Turn) -> bool:
        """A turn of an epoch that has ended may still be held: by a task that takes long."""
        return not self._is_held and turn == Turn(self.epoch, self._next)

    def wait_free(self, limit_s: float) -> bool:
        """Waits until nobody holds a turn, at most so long; returns True if nobody does."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_held, limit_s)

    def begin(self, epoch: int) -> None:
        """Ends the epoch before, and starts to count anew."""
        with self._changed:
            if epoch > self.epoch:
                self.epoch, self._next = epoch, 0
                self._changed.notify_all()
