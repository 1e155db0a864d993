"""Makes the values that programs, plans and kernels are timed with.

On a GPU values decide the power that a chip takes, and so its clock: one jit of a 0.85B decoder takes 1,039 ms on an
H200 with random weights, and 941 with zeros. So:

    floats      normal; with two dims or more, scaled by 1 / sqrt(fan-in) as an initialised layer is
    integers    uniform over the table that they index, or below 100 if none is known (`read_ranges`)
    scalars     settings such as a rate or a counter: floats 0.01, integers 0
    keys        random keys

All are finite. A program may still make NaN of some of them; what it takes the root or the logarithm of is positive, so
that an optimizer's state stays finite. The same type has the same values in every process.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Sharding, SingleDeviceSharding

from jaxquard import _jax_compat

# A prime: rows of an array differ.
_PATTERN_SIZE = 65521
_STRIDE = 7919
_SCALAR = 0.01
_FEW = 100
# Larger arrays are made on the devices.
_LARGE_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRange:
    """The values that an array may have, beside its type.

    Attributes:
        is_positive: floats are above zero.
        limit: integers are below it; None if nothing is known.
    """

    is_positive: bool = False
    limit: int | None = None


ANY = ValueRange()


def make_array(aval: Any, sharding: Sharding, values: ValueRange = ANY, *, seed: int = 0) -> jax.Array:
    """Makes an array of a type, in shards: large ones on the devices, without a copy on the host.

    Arrays of a type and a seed are equal.
    """
    if _is_key(aval):
        return jax.device_put(make_host_array(aval), sharding)
    if next(iter(sharding.device_set)).platform != "cpu" and is_large(aval):
        return _make_on_devices(aval, sharding, values, seed)
    pattern = _pattern(tuple(aval.shape), np.dtype(aval.dtype), values, seed)

    def make_shard(index: tuple[slice, ...] | None) -> np.ndarray:
        starts = [range(size)[part] for size, part in zip(aval.shape, index or (), strict=True)]
        begin = sum(_STRIDE * (dim + 1) * places.start for dim, places in enumerate(starts))
        return np.resize(np.roll(pattern, -begin), tuple(map(len, starts)))

    return jax.make_array_from_callback(aval.shape, sharding, make_shard)


def make_host_array(aval: Any, values: ValueRange = ANY) -> np.ndarray | jax.Array:
    """Makes an array of a type on the host; random keys are on a device."""
    if _is_key(aval):
        return _make_keys(aval)
    return np.resize(_pattern(tuple(aval.shape), np.dtype(aval.dtype), values, 0), aval.shape)


def make_traced(aval: Any, values: ValueRange = ANY, *, seed: int = 0) -> jax.Array:
    """Makes an array of a type within a program, where it is sharded as its users want: each device makes its part."""
    dtype = np.dtype(aval.dtype)
    if _is_key(aval) or not aval.shape:
        return jnp.asarray(make_host_array(aval, values))
    if not jnp.issubdtype(dtype, jnp.inexact):
        return (_hash_positions(aval.shape, 2 * seed) % jnp.uint32(_limit(dtype, values))).astype(dtype)
    # Box and Muller: two uniform numbers make a normal one.
    first, second = (_hash_positions(aval.shape, 2 * seed + part).astype(jnp.float32) / 2.0**32 for part in (0, 1))
    normal = jnp.sqrt(-2 * jnp.log(jnp.maximum(first, 2.0**-32))) * jnp.cos(2 * math.pi * second)
    return (_scale(aval.shape) * _signed(normal, values)).astype(dtype)


def is_large(aval: Any) -> bool:
    """Returns true for an array that is better made on the devices."""
    return not _is_key(aval) and math.prod(aval.shape) * np.dtype(aval.dtype).itemsize > _LARGE_BYTES


def _make_on_devices(aval: Any, sharding: Sharding, values: ValueRange, seed: int) -> jax.Array:
    if sharding.is_fully_addressable:
        return _compile_maker(tuple(aval.shape), np.dtype(aval.dtype), values, seed, sharding)()
    # Where one GPU stands in for many, no program runs on the others.
    shape = sharding.shard_shape(tuple(aval.shape))
    shards = [
        _compile_maker(shape, np.dtype(aval.dtype), values, seed, SingleDeviceSharding(device))()
        for device in sharding.addressable_devices
    ]
    return jax.make_array_from_single_device_arrays(tuple(aval.shape), sharding, shards)


@functools.lru_cache(maxsize=256)
def _compile_maker(shape: tuple[int, ...], dtype: np.dtype, values: ValueRange, seed: int, sharding: Sharding) -> Any:
    type_ = jax.ShapeDtypeStruct(shape, dtype)
    return jax.jit(lambda: make_traced(type_, values, seed=seed), out_shardings=sharding)


def _hash_positions(shape: tuple[int, ...], seed: int) -> jax.Array:
    """Returns 32 bits for each place of an array, which look random."""
    place = jnp.zeros((), jnp.uint32)
    for dim, size in enumerate(shape):
        place = place * jnp.uint32(size % 2**32) + lax.broadcasted_iota(jnp.uint32, shape, dim)
    place ^= jnp.uint32((seed + 1) * 0x9E3779B9 % 2**32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        place = (place ^ (place >> shift)) * jnp.uint32(factor)
    return place


@functools.lru_cache(maxsize=256)
def _pattern(shape: tuple[int, ...], dtype: np.dtype, values: ValueRange, seed: int) -> np.ndarray:
    """Returns the values that an array repeats."""
    random = np.random.default_rng(seed)
    is_float = jax.dtypes.issubdtype(dtype, np.inexact)
    if not shape:
        return np.full(1, _SCALAR if is_float else 0).astype(dtype)
    if not is_float:
        return random.integers(0, _limit(dtype, values), _PATTERN_SIZE).astype(dtype)
    return (_scale(shape) * _signed(random.standard_normal(_PATTERN_SIZE, np.float32), values)).astype(dtype)


def _signed(normal: Any, values: ValueRange) -> Any:
    return abs(normal) + _SCALAR if values.is_positive else normal


def _scale(shape: tuple[int, ...]) -> float:
    return 1 / math.sqrt(max(1, shape[-2])) if len(shape) > 1 else 1.0


def _limit(dtype: np.dtype, values: ValueRange) -> int:
    most = 2 if dtype == np.bool_ else int(jnp.iinfo(dtype).max) + 1
    # The narrowest integers of JAX hold 0 and 1 and little more.
    usual = 2 if dtype == np.bool_ or jnp.iinfo(dtype).bits < 8 else _FEW
    return max(1, min(most, values.limit or usual))


def _is_key(aval: Any) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)


def _make_keys(aval: Any) -> jax.Array:
    implementation = _jax_compat.key_implementation(aval.dtype.name)
    keys = jax.random.key(0, impl=implementation)
    return jax.random.split(keys, aval.shape) if aval.shape else keys
