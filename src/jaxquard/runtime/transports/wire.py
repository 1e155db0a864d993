"""Turns the arrays of a message into what crosses between two processes, and back.

    float32[4,4]{x,-}, this process has the whole mesh     itself
    float32[4,4]{x,-}, this process has 2 of 4 devices     2 arrays float32[1,4], each on one device
    key<fry>[3]                                            its data, uint32[3,2]
    float32[0,4]                                           nothing: the receiver makes it

An array whose sharding is not the one that the channel says is refused here, at each send: that it has shards
of the right size would not make it the right array.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxquard import _jax_compat
from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.transfer import sharding_on
from jaxquard.runtime.transports.layout import LayoutError

Parts = list[jax.Array]


def wire_messages(
    messages: tuple[tuple[ArrayType, ...], ...], mesh: Mesh, *, by_device: bool = False
) -> tuple["WireMessage", ...]:
    """Makes the forms of all messages of a channel, each distinct one once."""
    distinct = {types: WireMessage(types, mesh, by_device=by_device) for types in dict.fromkeys(messages)}
    return tuple(distinct[types] for types in messages)


class WireMessage:
    """The form in which the messages of some types cross; the same at both ends if the layouts are."""

    def __init__(self, types: tuple[ArrayType, ...], mesh: Mesh, *, by_device: bool) -> None:
        """Prepares to split and join.

        Args:
            by_device: one array per device also where this process has the whole mesh.
        """
        by_device = by_device or mesh.is_multi_process
        self.types = types
        self._arrays = tuple(_WireArray(type_, mesh, by_device=by_device) for type_ in types)
        self.parts: tuple[jax.ShapeDtypeStruct, ...] = tuple(part for array in self._arrays for part in array.parts)
        self.size_bytes = sum(_local_bytes(part) for part in self.parts)

    def split(self, arrays: Sequence[jax.Array]) -> Parts:
        """Splits arrays into the parts that this process sends.

        Raises:
            LayoutError: if an array has another shape, dtype or sharding.
        """
        if len(arrays) != len(self._arrays):
            raise LayoutError(f"the channel's message has {len(self._arrays)} arrays, not {len(arrays)}.")
        return [part for wire, array in zip(self._arrays, arrays, strict=True) for part in wire.split(array)]

    def join(self, parts: Iterable[jax.Array]) -> list[jax.Array]:
        """Joins the arrays whose parts have arrived in this process."""
        rest = iter(parts)
        return [array.join([next(rest) for _ in array.parts]) for array in self._arrays]


class _WireArray:
    """One array of a message."""

    def __init__(self, type_: ArrayType, mesh: Mesh, *, by_device: bool) -> None:
        self.type = type_
        self._here = local_devices(mesh)
        self.sharding = sharding_on(mesh, type_)
        self.dtype = _jax_compat.dtype_named(type_.dtype)
        self._is_key = jax.dtypes.issubdtype(self.dtype, jax.dtypes.prng_key)
        data = jax.eval_shape(_key_data if self._is_key else _same, jax.ShapeDtypeStruct(type_.shape, self.dtype))
        self._data_shape = data.shape
        self._data_dtype = data.dtype
        self._data_sharding = self._shard_keys(mesh) if self._is_key else self.sharding
        self._by_device = by_device
        self.parts = self._describe_parts()
        self._empty = None if self.parts else self._make_empty()

    def _shard_keys(self, mesh: Mesh) -> NamedSharding:
        dims = (*self.sharding.spec, *[None] * (len(self._data_shape) - len(self.sharding.spec)))
        return NamedSharding(mesh, PartitionSpec(*dims))

    def _describe_parts(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        shape, dtype = self._data_shape, self._data_dtype
        if math.prod(shape) == 0:
            return ()
        if not self._by_device:
            return (jax.ShapeDtypeStruct(shape, dtype, sharding=self._data_sharding),)
        shard = self._data_sharding.shard_shape(shape)
        return tuple(jax.ShapeDtypeStruct(shard, dtype, sharding=SingleDeviceSharding(device)) for device in self._here)

    def split(self, array: jax.Array) -> Sequence[jax.Array]:
        self._check(array)
        if not self.parts:
            return ()
        data = jax.random.key_data(array) if self._is_key else array
        return [shard.data for shard in data.addressable_shards] if self._by_device else (data,)

    def join(self, parts: Parts) -> jax.Array:
        if self._empty is not None:
            return self._empty
        data = self._assemble(parts) if self._by_device else parts[0]
        return self._wrap(data) if self._is_key else data

    def _check(self, array: jax.Array) -> None:
        sharding = array.sharding
        is_laid_out = sharding is self.sharding or sharding == self.sharding
        if not is_laid_out:
            is_laid_out = self.sharding.is_equivalent_to(sharding, len(self.type.shape))
        if not is_laid_out or array.shape != self.type.shape or array.dtype != self.dtype:
            raise LayoutError(
                f"a message was to carry {self.type}, but got {array.dtype}{list(array.shape)} with {sharding}. "
                "Give it the receiver's sharding before sending."
            )

    def _assemble(self, parts: Parts) -> jax.Array:
        return jax.make_array_from_single_device_arrays(self._data_shape, self._data_sharding, parts)

    def _wrap(self, data: jax.Array) -> jax.Array:
        return jax.random.wrap_key_data(data, impl=_jax_compat.key_implementation(self.type.dtype))

    def _make_empty(self) -> jax.Array:
        zeros = np.zeros(self._data_sharding.shard_shape(self._data_shape), self._data_dtype)
        data = self._assemble([jax.device_put(zeros, device) for device in self._here])
        return self._wrap(data) if self._is_key else data


def local_devices(mesh: Mesh) -> list[jax.Device]:
    """The devices of a mesh that this process has, in its order, which is that of addressable shards."""
    return [device for device in mesh.devices.flat if device.process_index == device.client.process_index()]


def _local_bytes(part: jax.ShapeDtypeStruct) -> int:
    """The bytes of an array on all devices of this process together."""
    shard = math.prod(part.sharding.shard_shape(part.shape))
    return shard * part.dtype.itemsize * len(part.sharding.addressable_devices)


def _same(array: Any) -> Any:
    return array


def _key_data(keys: Any) -> Any:
    return jax.random.key_data(keys)
