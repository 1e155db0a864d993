"""A place for one buffer, which an actor fills while it dispatches a step.

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


class ResultCell:
    """One buffer on one actor.

    Attributes:
        actor: the index of the actor whose devices hold, or will hold, the buffer.
        step: the step that fills it; None if it was filled from the start.
        owner: the token of the engine whose actor it is; None if it does not matter.
    """

    __slots__ = ("__weakref__", "_buffer", "_is_taken", "actor", "owner", "step")

    def __init__(
        self, *, actor: int, buffer: jax.Array | None = None, step: StepState | None = None, owner: object = None
    ) -> None:
        assert (buffer is None) != (step is None), "a cell has a buffer, or a step that will fill it"
        self.actor = actor
        self.step = step
        self.owner = owner if step is None else step.owner
        self._buffer = buffer
        self._is_taken = False

    def is_deleted(self) -> bool:
        """Whether a step has taken the buffer."""
        return self._is_taken

    @property
    def is_filled(self) -> bool:
        """Whether the buffer is here, though it may not be computed yet."""
        return self._buffer is not None

    def is_ready(self) -> bool:
        """Whether the value is computed, or known to be lost."""
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

    def check_not_taken(self) -> None:
        if self._is_taken:
            raise DeletedArrayError(
                "this array was donated to a distributed step, which has taken its buffers. Use the step's "
                "result instead, or do not donate the argument."
            )

    def delete(self) -> None:
        """Drops the buffer; any later use raises DeletedArrayError."""
        self._is_taken = True
        self._buffer = None

    # What the engine does with it. `take` is called when a step is queued, the others by its actor.

    def take(self) -> None:
        """A queued step donates the buffer: nobody else may use it from now on."""
        self._is_taken = True

    def give_back(self, buffer: jax.Array | None) -> None:
        """The step that took the cell has failed; `buffer` is what its list still holds of it."""
        if self._buffer is None and buffer is not None and not buffer.is_deleted():
            self._buffer = buffer
        self._is_taken = self._buffer is None

    def fill(self, buffer: jax.Array) -> None:
        self._buffer = buffer

    def read(self, reader: int) -> jax.Array:
        """The buffer for a step that runs on actor `reader`, after everything that was queued before it."""
        if self._buffer is None and self.step is not None:
            if self.actor != reader:
                self.step.wait_dispatched(self.actor)
            if self._buffer is None:
                raise StepLost
        if self.step is not None and self.step.error is not None:
            raise StepLost
        return self._get()

    def release(self) -> None:
        """The step that took the buffer holds it now."""
        self._buffer = None

    def _get(self) -> jax.Array:
        buffer = self._buffer
        if buffer is None:
            self.check_not_taken()
            assert buffer is not None
        return buffer


class StepLost(Exception):
    """A value that a step needs will never come: its own step failed, or an actor gave up."""
