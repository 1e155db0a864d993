"""Transfers an array to another actor's devices; the way is chosen once per send and then only run.

Four ways, the first that fits:

- *share*: both actors have the same devices and the same sharding (many actors on one GPU): the very same
  array. Only if neither side can delete it under the other, see `may_share`; otherwise *copy*.
- *view*: CPU to CPU, and shard i covers the same indices on both sides: the new array reads the old one's
  memory. Two layouts whose shards merely have equal sizes never go this way.
- *put*: everything else, other layouts and random keys among it, is `jax.device_put`, which reshards and, on
  GPU and TPU, returns at once.

A view waits until its source is computed, so it runs on the sender's thread, which waits for its own task
anyway. Memory is safe whatever happens to either array afterwards: a view holds its source, and XLA
copies before it reuses a donated buffer that is held elsewhere.

Values also go between devices and this process's memory (`place`, `as_data`). NumPy has no random keys, so a key
travels as the array of its words, with the name of its dtype (`key<fry>`) kept beside it: in an `ArrayType`, a manifest
or a message.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxquard import _jax_compat
from jaxquard.ir.array_type import ArrayType


def as_data(value: Any) -> np.ndarray:
    """Turns any array into a NumPy array; of random keys, their data."""
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        value = jax.random.key_data(value)
    return np.asarray(value)


def as_value(data: np.ndarray, dtype: str) -> np.ndarray | jax.Array:
    """Turns data into values, given the name of the dtype: random keys on the default device, or the data itself."""
    if is_key(dtype):
        return jax.random.wrap_key_data(jax.numpy.asarray(data), impl=_jax_compat.key_implementation(dtype))
    return data


def is_key(dtype: str) -> bool:
    """Returns True if a dtype of this name is one of random keys."""
    return dtype.startswith("key<")


TransferFn = Callable[[jax.Array], jax.Array]


def sharding_on(mesh: Mesh | AbstractMesh, type_: ArrayType) -> NamedSharding:
    """The sharding of a type on an actor's mesh."""
    return NamedSharding(mesh, PartitionSpec(*(axes or None for axes in type_.spec)))


def choose_transfer(source: NamedSharding, target: NamedSharding, type_: ArrayType, *, may_share: bool) -> TransferFn:
    """Chooses the function that transfers an array from sharding `source` to `target`.

    Args:
        may_share: both sides may hold one and the same array, because neither donates it, or returns it to
            where it can be donated later, while the other still needs it.
    """
    if _same_devices(source, target) and source.is_equivalent_to(target, len(type_.shape)):
        return _share if may_share else functools.partial(_copy, target=target)
    if _is_viewable(source, target, type_.shape) and not _is_extended(type_):
        return _view_on(target)
    return functools.partial(_put, target=target)


def place(value: Any, sharding: NamedSharding) -> jax.Array:
    """Turns a host value or any array into an array with exactly this sharding.

    A host value is copied before this returns: the caller may overwrite it. An array that has the
    sharding already is returned as it is.
    """
    if not isinstance(value, jax.Array):
        return _place_host_value(value, sharding)
    if value.sharding == sharding:
        return value
    if not sharding.is_fully_addressable and value.is_fully_addressable:
        return _place_over_processes(value, sharding)
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended) or not isinstance(value.sharding, NamedSharding):
        return jax.device_put(value, sharding)
    if not _same_devices(value.sharding, sharding) and _is_viewable(value.sharding, sharding, value.shape):
        return _view_on(sharding)(value)
    return jax.device_put(value, sharding)


def copy_array(array: jax.Array) -> jax.Array:
    """Copies an array on the same devices.

    Of a mesh that spans processes, each copies its own parts: one may do so without the others.
    """
    if array.is_fully_addressable:
        return _copy(array, target=array.sharding)
    parts = [_copy(shard.data, target=shard.data.sharding) for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def _share(array: jax.Array) -> jax.Array:
    return array


def _copy(array: jax.Array, *, target: Any) -> jax.Array:
    return jax.device_put(array, target, may_alias=False)


def _put(array: jax.Array, *, target: NamedSharding) -> jax.Array:
    return jax.device_put(array, target)


def _view_on(target: NamedSharding) -> TransferFn:
    put, views, aval_of = _jax_compat.shard_putter(), _jax_compat.shard_views, _jax_compat.aval_of
    devices = list(target.mesh.devices.flat)

    def view(array: jax.Array) -> jax.Array:
        return put(aval_of(array), target, views(array), devices)

    return view


def _place_host_value(value: Any, sharding: NamedSharding) -> jax.Array:
    type_ = jax.typeof(np.asarray(value))
    host = np.array(value, dtype=type_.dtype)
    if not sharding.is_fully_addressable:
        return _spread(host, sharding)
    if not _is_cpu(sharding):
        return jax.device_put(host, sharding)
    shards = [host[(*(slice(start, stop) for start, stop in index), ...)] for index in _indices(sharding, host.shape)]
    return _jax_compat.shard_putter()(type_, sharding, shards, list(sharding.mesh.devices.flat))


def _place_over_processes(value: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Spreads an array, of which every process has an equal one, over a mesh that spans the processes."""
    if not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return _spread(np.asarray(value), sharding)
    data = _spread(np.asarray(jax.random.key_data(value)), sharding)
    return jax.random.wrap_key_data(data, impl=str(jax.random.key_impl(value)))


def _spread(host: np.ndarray, sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _same_devices(source: NamedSharding, target: NamedSharding) -> bool:
    return tuple(source.mesh.devices.flat) == tuple(target.mesh.devices.flat)


def _is_viewable(source: NamedSharding, target: NamedSharding, shape: tuple[int, ...]) -> bool:
    return (
        _is_cpu(source)
        and _is_cpu(target)
        and source.num_devices == target.num_devices
        and _indices(source, shape) == _indices(target, shape)
    )


@functools.lru_cache(maxsize=4096)
def _indices(sharding: NamedSharding, shape: tuple[int, ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Returns the bounds of each device's shard along each dim, in the order of the mesh."""
    by_device = sharding.devices_indices_map(shape)
    return tuple(
        tuple(part.indices(size)[:2] for part, size in zip(by_device[device], shape, strict=True))
        for device in sharding.mesh.devices.flat
    )


def _is_cpu(sharding: NamedSharding) -> bool:
    return sharding.mesh.devices.flat[0].platform == "cpu"


def _is_extended(type_: ArrayType) -> bool:
    return jax.dtypes.issubdtype(_jax_compat.dtype_named(type_.dtype), jax.dtypes.extended)
