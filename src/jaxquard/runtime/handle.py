"""What the controller holds of a buffer on an actor: a `Cell` of this process, or a `RayCell` of another."""

from typing import Any, Protocol

import numpy as np


class Handle(Protocol):
    """One buffer on one actor, as the controller knows it.

    Attributes:
        actor: the index of the actor that holds, or will hold, the buffer.
    """

    actor: int

    @property
    def owner(self) -> object:
        """The token of the only engine that can read it where it is; None if every in-process engine can."""
        ...

    def is_deleted(self) -> bool: ...

    def is_ready(self) -> bool: ...

    def wait_ready(self) -> Any: ...

    def fetch(self) -> np.ndarray: ...

    def check_not_taken(self) -> None: ...

    def delete(self) -> None: ...
