"""Arrays that were sent and may not have left yet: they must not be donated (design decision 5)."""

import weakref

import jax

from jaxquard.runtime.transfer import copy_array
from jaxquard.runtime.transports.protocol import Sent


class Unacknowledged:
    """What this process has sent and its peers have not confirmed; an array may go to several."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[weakref.ref[jax.Array], list[Sent]]] = {}

    def add(self, array: jax.Array, sent: Sent) -> None:
        waiting = self._waiting(array)
        waiting.append(sent)
        self._sent[id(array)] = (weakref.ref(array), waiting)

    def to_donate(self, array: jax.Array) -> jax.Array:
        """The array if its buffer may be given away, else a copy: waiting for a peer here could block both."""
        waiting = self._waiting(array)
        return array if all(sent.is_taken() for sent in waiting) else copy_array(array)

    def tidy(self) -> None:
        """Forgets what has arrived, or is gone here."""
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
