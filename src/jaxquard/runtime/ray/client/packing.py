"""Packs values for other processes: a pickle, with large arrays beside it, and shared values as references.

The client process passes packed values on between the controller and the workers, and never looks inside. An array
beside the pickle is copied by nobody but the transport, and is read where it lies.
"""

import io
import pickle
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


class SharedValue:
    """A value that Ray keeps for several processes, by its number; a process that unpacks it gets the value."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, buffers: list[Any], shared: list[int]) -> None:
        def keep(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < _MIN_BYTES:
                return True
            buffers.append(raw)
            return False

        super().__init__(file, protocol=5, buffer_callback=keep)
        self._shared = shared

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not SharedValue:
            return None
        if obj.number not in self._shared:
            self._shared.append(obj.number)
        return self._shared.index(obj.number)


class _Unpacker(pickle.Unpickler):
    def __init__(self, payload: Any, buffers: Sequence[Any], shared: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(payload), buffers=buffers)
        self._shared = shared

    def persistent_load(self, pid: int) -> Any:
        return self._shared[pid]


def pack(value: Any) -> Packed:
    """Packs a value; the memory of its large arrays is not copied."""
    file, buffers, shared = io.BytesIO(), [], []
    _Packer(file, buffers, shared).dump(value)
    return Packed(payload=file.getvalue(), buffers=tuple(buffers), shared=tuple(shared))


def unpack(payload: Any, buffers: Sequence[Any] = (), shared: Sequence[Any] = ()) -> Any:
    """Unpacks a value; its large arrays lie in the buffers.

    Args:
        shared: the shared values in it, in the order of `Packed.shared`.
    """
    return _Unpacker(payload, buffers, shared).load()
