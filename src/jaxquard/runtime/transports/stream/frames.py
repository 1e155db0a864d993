"""The bytes of the arrays of a message: each distinct shard once, in the order of the devices.

On CPU nothing is copied but by the kernel: what is sent is a view of the array's memory, and the array that arrives
reads the memory that the bytes were received in. Elsewhere the bytes go through pinned memory of the host: on an H200
64 MB came there at 36 GB/s, and at 1.2 GB/s into other memory.

    float32[4,4]{x,-} on 2 devices     2 shards of 32 bytes
    float32[4,4] on 2 devices          1 shard of 64 bytes, put on both
"""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding

from jaxquard import _jax_compat
from jaxquard.runtime.transports.wire import WireMessage

_ALIGNMENT_BYTES = 64
"""XLA on CPU uses memory as it is only if it begins at a multiple of this."""

_PINNED = "pinned_host"


class MessageBytes:
    """The form in which the parts of a message cross; the same at both ends, as their layouts are."""

    def __init__(self, message: WireMessage) -> None:
        self._parts = [_PartBytes(part) for part in message.parts]
        self.size_bytes = sum(part.size_bytes for part in self._parts)

    def views(self, arrays: Sequence[jax.Array]) -> list[memoryview]:
        """Waits until arrays are computed, and returns the memory of their distinct shards."""
        return [view for part, array in zip(self._parts, arrays, strict=True) for view in part.views(array)]

    def allocate(self) -> list[list[np.ndarray]]:
        """Allocates memory for the distinct shards of each array."""
        return [part.allocate() for part in self._parts]

    def join(self, shards: list[list[np.ndarray]]) -> list[jax.Array]:
        """Makes arrays of shards that were received; they have arrived on their devices when this returns."""
        joined = [part.join(own) for part, own in zip(self._parts, shards, strict=True)]
        return jax.block_until_ready(joined)


class _PartBytes:
    """One array of a message."""

    def __init__(self, part: jax.ShapeDtypeStruct) -> None:
        sharding = part.sharding
        assert sharding is not None
        self._sharding, self._dtype = sharding, part.dtype
        self._aval = jax.core.ShapedArray(part.shape, part.dtype)
        self._shape = sharding.shard_shape(part.shape)
        indices = sharding.addressable_devices_indices_map(part.shape)
        self._devices = _local_devices(sharding)
        distinct: dict[tuple[tuple[int, int], ...], int] = {}
        places = [distinct.setdefault(_bounds(indices[device], part.shape), len(distinct)) for device in self._devices]
        # For each device, which of the distinct shards it has; for each distinct one, the first device that has it.
        self._places = places
        self._firsts = [places.index(place) for place in range(len(distinct))]
        self._staging = [_pinned_memory(self._devices[first]) for first in self._firsts]
        self._shard_bytes = math.prod(self._shape) * part.dtype.itemsize
        self.size_bytes = self._shard_bytes * len(self._firsts)

    def views(self, array: jax.Array) -> list[memoryview]:
        shards = [array.addressable_data(position) for position in self._firsts]
        shards = [
            shard if staging is None else jax.device_put(shard, staging)
            for shard, staging in zip(shards, self._staging, strict=True)
        ]
        return [bytes_of(np.ascontiguousarray(shard)) for shard in shards]

    def allocate(self) -> list[np.ndarray]:
        return [self._allocate_one() for _ in self._firsts]

    def _allocate_one(self) -> np.ndarray:
        memory = np.empty(self._shard_bytes + _ALIGNMENT_BYTES, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT_BYTES
        return memory[start : start + self._shard_bytes].view(self._dtype).reshape(self._shape)

    def join(self, shards: list[np.ndarray]) -> jax.Array:
        put = _jax_compat.shard_putter()
        return put(self._aval, self._sharding, [shards[place] for place in self._places], self._devices)


def _pinned_memory(device: jax.Device) -> SingleDeviceSharding | None:
    """The memory of the host from which a device copies fastest; None if it is the device's own, or there is none."""
    if device.platform == "cpu" or all(memory.kind != _PINNED for memory in device.addressable_memories()):
        return None
    return SingleDeviceSharding(device, memory_kind=_PINNED)


def bytes_of(array: np.ndarray) -> memoryview:
    """Views an array as bytes, whatever its dtype is: not all of them have buffers of their own."""
    return array.reshape(-1).view(np.uint8).data


def _local_devices(sharding: jax.sharding.Sharding) -> list[jax.Device]:
    """The devices of a sharding that this process has, in the order of an array's addressable shards."""
    if isinstance(sharding, NamedSharding):
        devices = sharding.mesh.devices.flat
        return [device for device in devices if device.process_index == device.client.process_index()]
    return list(sharding.addressable_devices)


def _bounds(index: tuple[slice, ...] | None, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    assert index is not None
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
