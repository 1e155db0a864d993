"""Epochs: stretches of time in which nothing failed, each with its own turns for every actor.

When something fails, the epoch ends: every process stops waiting, and what is queued in it is given up. The next one
begins once all processes are connected anew. Its number and its counters are one object, so that whoever takes turns
takes all of them from the same epoch.
"""

import contextlib
import itertools
import threading

from jaxquard.errors import MeshError
from jaxquard.runtime.ray.controller.worker_group import WorkerGroup
from jaxquard.runtime.ray.messages import Turn


class Epoch:
    """One epoch, and the turns that were taken in it."""

    def __init__(self, number: int, num_actors: int) -> None:
        self.number = number
        self._counts = [itertools.count() for _ in range(num_actors)]

    def take_turn(self, actor: int) -> Turn:
        return Turn(self.number, next(self._counts[actor]))


class Epochs:
    """The epochs of an engine, one after the other."""

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._number = 0
        self._current: Epoch | None = None

    @property
    def number(self) -> int:
        """The number of the current epoch, or of the next if none is current."""
        return self._number

    @property
    def current(self) -> Epoch | None:
        """The current epoch; None if the last has ended and the next has not begun."""
        current = self._current
        return current if current is not None and current.number == self._number else None

    def begin(self, number: int) -> bool:
        """Begins an epoch that all are ready for; returns False if something has failed meanwhile."""
        with self._lock:
            if number != self._number:
                return False
            self._current = Epoch(number, self._group.config.num_actors)
            return True

    def end(self, number: int | None = None) -> None:
        """Ends the current epoch, if it has this number: all processes stop waiting."""
        with self._lock:
            if number is not None and number != self._number:
                return
            self._number += 1
            with contextlib.suppress(MeshError):  # Ray is gone: nobody waits any more.
                for worker in self._group.living_workers():
                    worker.handle.stop_epoch(self._number)
