"""`RayCell`: the controller's handle of a buffer that an actor's process holds; see `result_cell`."""

from typing import Protocol

import numpy as np

from jaxquard.errors import MeshError
from jaxquard.runtime.result_cell import BaseCell
from jaxquard.runtime.step_state import StepState


class Keeper(Protocol):
    """The part of the engine that a cell uses."""

    token: object

    def fetch(self, actor: int, number: int) -> np.ndarray: ...

    def release(self, actor: int, number: int) -> None: ...

    def generation(self, actor: int) -> int: ...


class RayCell(BaseCell):
    """A buffer that an actor's process holds.

    Attributes:
        number: the number by which the actor's process knows it.
    """

    __slots__ = (
        "_generation",
        "_is_filled",
        "_keeper",
        "_value",
        "number",
    )

    def __init__(self, *, actor: int, number: int, keeper: Keeper, step: StepState | None = None) -> None:
        self.number = number
        self._keeper = keeper
        self._generation = keeper.generation(actor)
        self._is_filled = step is None
        self._value: np.ndarray | None = None
        super().__init__(actor=actor, step=step)  # Last: from now on the cell releases its buffer when it goes.

    @property
    def owner(self) -> object:
        return self._keeper.token

    def is_ready(self) -> bool:
        """Returns True if the value is computed, or known to be lost."""
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

    # For the engine.

    def give_back(self) -> None:
        """Undoes `take`: the step has failed, and left the buffer."""
        self._is_taken = False

    def fill(self, value: np.ndarray | None) -> None:
        """Records that the buffer is there; `value` is its value if it is small."""
        self._value, self._is_filled = value, True

    def __del__(self) -> None:
        if not getattr(self, "_is_taken", True):
            self._keeper.release(self.actor, self.number)
