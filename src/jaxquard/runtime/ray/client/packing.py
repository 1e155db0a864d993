"""Packs values for other processes: a pickle, with large arrays beside it, and shared values as references.

The client process passes packed values on between the controller and the workers, and never looks inside. An array
beside the pickle is copied by nobody but the transport, and is read where it lies.
"""

import pickle
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MIN_BYTES = 64 * 1024
"""Smaller arrays are copied into the pickle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A packed value.

    Attributes:
        payload: the pickle.
        buffers: the memory of large arrays.
        shared: the numbers of the shared values in it, in the order in which they were found.
    """

    payload: bytes
    buffers: tuple[Any, ...] = ()
    shared: tuple[int, ...] = ()


class _Found(threading.local):
    """The shared values of the value that this thread packs or unpacks: their numbers, or themselves."""

    numbers: list[int]
    values: Sequence[Any]


_found = _Found()


class SharedValue:
    """A value that Ray keeps for several processes, by its number; a process that unpacks it gets the value."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        _found.numbers.append(self.number)
        return _take_value, (len(_found.numbers) - 1,)


def _take_value(position: int) -> Any:
    return _found.values[position]


def pack(value: Any) -> Packed:
    """Packs a value; the memory of its large arrays is not copied."""
    buffers: list[Any] = []

    def is_inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _MIN_BYTES:
            buffers.append(raw)
            return False
        return True

    _found.numbers = []
    payload = pickle.dumps(value, protocol=5, buffer_callback=is_inside)
    return Packed(payload=payload, buffers=tuple(buffers), shared=tuple(_found.numbers))


def unpack(payload: Any, buffers: Sequence[Any] = (), shared: Sequence[Any] = ()) -> Any:
    """Unpacks a value; its large arrays lie in the buffers.

    Args:
        shared: the shared values in it, in the order of `Packed.shared`.
    """
    _found.values = shared
    try:
        return pickle.loads(payload, buffers=buffers)
    finally:
        _found.values = ()
