"""The controller's handle of a buffer that an actor's process holds. The counterpart of `runtime.cell.ResultCell`."""

from typing import Protocol

import numpy as np

from jaxquard.errors import DeletedArrayError, MeshError
from jaxquard.runtime.step_state import StepState


class Keeper(Protocol):
    """What a cell asks of the actors' processes."""

    token: object

    def fetch(self, actor: int, number: int) -> np.ndarray: ...

    def release(self, actor: int, number: int) -> None: ...

    def generation(self, actor: int) -> int: ...


class RayCell:
    """One buffer on one actor.

    Attributes:
        number: what the actor's process knows it by.
        step: the step that fills it; None if it was filled from the start.
    """

    __slots__ = (
        "__weakref__",
        "_generation",
        "_is_filled",
        "_is_taken",
        "_keeper",
        "_value",
        "actor",
        "number",
        "step",
    )

    def __init__(self, *, actor: int, number: int, keeper: Keeper, step: StepState | None = None) -> None:
        self.actor, self.number, self.step = actor, number, step
        self._keeper = keeper
        self._generation = keeper.generation(actor)
        self._is_filled = step is None
        self._is_taken = False
        self._value: np.ndarray | None = None

    @property
    def owner(self) -> object:
        return self._keeper.token

    def is_deleted(self) -> bool:
        """Whether a step has taken the buffer."""
        return self._is_taken

    def is_ready(self) -> bool:
        """Whether the value is computed, or known to be lost."""
        return self._is_filled or self.step is None or self.step.is_finished

    def wait_ready(self) -> None:
        """Waits until the value is computed.

        Raises:
            TaskFailed: if its step failed.
            DeletedArrayError: if a later step has taken the buffer.
        """
        self.check_not_taken()
        if not self._is_filled and self.step is not None:
            self.step.wait_dispatched(self.actor)
            if not self._is_filled:
                self.step.wait_finished()
        if self.step is not None:
            self.step.raise_error()
        if self._value is None:
            self.check_not_lost()

    def fetch(self) -> np.ndarray:
        """Waits, and brings the values here; of random keys, their data."""
        self.wait_ready()
        if self._value is not None:
            return self._value.copy()
        return self._keeper.fetch(self.actor, self.number)

    def check_not_taken(self) -> None:
        if self._is_taken:
            raise DeletedArrayError(
                "this array was donated to a distributed step, which has taken its buffers. Use the step's "
                "result instead, or do not donate the argument."
            )

    def check_not_lost(self) -> None:
        """Raises if the process that had the buffer is gone."""
        if self._generation != self._keeper.generation(self.actor):
            raise MeshError(
                f"this array was lost with the process of actor {self.actor}, which has been started again since. "
                "Restore it from a checkpoint: jq.restore(path, like=state)."
            )

    def delete(self) -> None:
        """Drops the buffer; any later use raises DeletedArrayError."""
        if not self._is_taken:
            self._is_taken = True
            self._keeper.release(self.actor, self.number)

    # What the engine does with it.

    def take(self) -> None:
        """A queued step donates the buffer: nobody else may use it from now on."""
        self._is_taken = True

    def give_back(self) -> None:
        """The step that took the cell has failed, and left the buffer."""
        self._is_taken = False

    def fill(self, value: np.ndarray | None) -> None:
        """The buffer is there; `value` is a small one's value."""
        self._value, self._is_filled = value, True

    def __del__(self) -> None:
        if not getattr(self, "_is_taken", True):
            self._keeper.release(self.actor, self.number)
