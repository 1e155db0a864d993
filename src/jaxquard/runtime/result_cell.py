"""`ResultCell`: a buffer on an actor of this process, which the actor fills while it dispatches a step.

A cell exists as soon as the step is queued, so that the next step can be queued on top of it: on the same
actor steps run in order, and by then the cell is filled. A cell is pending, filled, taken (a later step
donates it; it may still be pending then), or its step has failed.
"""

import jax
import numpy as np

from jaxquard import _jax_compat
from jaxquard.errors import DeletedArrayError
from jaxquard.runtime.step_state import StepState
from jaxquard.runtime.transfer import as_data

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.01


class BaseCell:
    """A buffer on an actor, which a step may fill later and another may donate.

    Attributes:
        actor: the index of the actor that holds, or will hold, the buffer.
        step: the step that fills it; None if it was filled from the start.
    """

    __slots__ = ("__weakref__", "_is_taken", "actor", "step")

    def __init__(self, *, actor: int, step: StepState | None) -> None:
        self.actor, self.step = actor, step
        self._is_taken = False

    def is_deleted(self) -> bool:
        """Returns True once a step donates the buffer, or it was deleted."""
        return self._is_taken

    def check_not_taken(self) -> None:
        """Raises DeletedArrayError if the buffer is gone."""
        if self._is_taken:
            raise DeletedArrayError(
                "this array was donated to a distributed step, which has taken its buffers. Use the step's "
                "result instead, or do not donate the argument."
            )

    def take(self) -> None:
        """Reserves the buffer for a queued step that donates it: nobody else may use it from now on."""
        self._is_taken = True


class ResultCell(BaseCell):
    """A buffer on an actor of this process.

    Attributes:
        owner: the token of the engine whose actor it is; None if it does not matter.
    """

    __slots__ = ("_buffer", "owner")

    def __init__(
        self, *, actor: int, buffer: jax.Array | None = None, step: StepState | None = None, owner: object = None
    ) -> None:
        assert (buffer is None) != (step is None), "a cell has a buffer, or a step that will fill it"
        super().__init__(actor=actor, step=step)
        self.owner = owner if step is None else step.owner
        self._buffer = buffer

    @property
    def is_filled(self) -> bool:
        """True if the buffer is here, though it may not be computed yet."""
        return self._buffer is not None

    def is_ready(self) -> bool:
        """Returns True if the value is computed, or known to be lost."""
        if self.step is not None and self.step.is_finished:
            return True
        return self._buffer is not None and _jax_compat.is_ready(self._buffer)

    def wait_filled(self) -> jax.Array:
        """Waits until the actor has dispatched the value, which may not be computed yet.

        Raises:
            TaskFailed: if its step failed.
            DeletedArrayError: if a later step has taken the buffer.
        """
        self.check_not_taken()
        if self.step is not None:
            if self._buffer is None:
                self.step.wait_dispatched(self.actor)
            if self._buffer is None:
                self.step.wait_finished()
            self.step.raise_error()
        return self._get()

    def wait_ready(self) -> jax.Array:
        """Waits until the value is computed; raises as `wait_filled` does."""
        buffer = self.wait_filled()
        pause_s = _FIRST_PAUSE_S
        while self.step is not None and not _jax_compat.is_ready(buffer) and not self.step.wait_finished(pause_s):
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        try:
            buffer.block_until_ready()
        except jax.errors.JaxRuntimeError:
            if self.step is not None:
                self.step.wait_finished()
                self.step.raise_error()
            raise
        return buffer

    def fetch(self) -> np.ndarray:
        """Waits, and brings the values here; of random keys, their data."""
        return as_data(self.wait_ready())

    def delete(self) -> None:
        """Drops the buffer; any later use raises DeletedArrayError."""
        self._is_taken = True
        self._buffer = None

    # For the engine: `take` is called when a step is queued, the others by its actor.

    def give_back(self, buffer: jax.Array | None) -> None:
        """Undoes `take`, as the step has failed; `buffer` is the array if its list still holds it."""
        if self._buffer is None and buffer is not None and not buffer.is_deleted():
            self._buffer = buffer
        self._is_taken = self._buffer is None

    def fill(self, buffer: jax.Array) -> None:
        self._buffer = buffer

    def read(self, reader: int) -> jax.Array:
        """Returns the buffer for a step on actor `reader`, after everything that was queued before it."""
        if self._buffer is None and self.step is not None:
            if self.actor != reader:
                self.step.wait_dispatched(self.actor)
            if self._buffer is None:
                raise StepLost
        if self.step is not None and self.step.error is not None:
            raise StepLost
        return self._get()

    def release(self) -> None:
        """Drops the buffer, which the step that donates it holds now."""
        self._buffer = None

    def _get(self) -> jax.Array:
        buffer = self._buffer
        if buffer is None:
            self.check_not_taken()
            assert buffer is not None
        return buffer


class StepLost(Exception):
    """Raised when a value that a step needs will never come: its own step failed, or an actor gave up."""
