"""Inputs to time a program with: made on the devices, already sharded, or on the host.

Floats are small and positive, so that no run wanders into NaN, infinities or denormals; arrays of integers are small,
so that they are valid indices of most tables and spread over some rows of them; single integers, which are counters or
choices, are zero.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard import _jax_compat

_PATTERN_SIZE = 65521  # A prime: rows of an array differ.


class InputMaker:
    """Makes inputs; those that no program donates are shared."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._shared: dict[Any, jax.Array] = {}

    def share(self, aval: Any, spec: PartitionSpec) -> jax.Array:
        """An input that must not be donated."""
        key = (aval.shape, aval.dtype, spec)
        if key not in self._shared:
            self._shared[key] = self.make(aval, spec)
        return self._shared[key]

    def make(self, aval: Any, spec: PartitionSpec) -> jax.Array:
        """An input of its own."""
        return make_input(aval, NamedSharding(self._mesh, spec))


def make_input(aval: Any, sharding: NamedSharding) -> jax.Array:
    """One array of a type."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.device_put(_make_keys(aval), sharding)
    dtype = np.dtype(aval.dtype)
    pattern = _pattern(dtype, is_scalar=aval.shape == ())

    def make_shard(index: tuple[slice, ...] | None) -> np.ndarray:
        starts = [range(size)[part] for size, part in zip(aval.shape, index or (), strict=True)]
        return np.resize(pattern, tuple(map(len, starts)))

    return jax.make_array_from_callback(aval.shape, sharding, make_shard)


def make_host_input(aval: Any) -> np.ndarray | jax.Array:
    """One array of a type on the host; random keys are on a device."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return _make_keys(aval)
    return np.resize(_pattern(np.dtype(aval.dtype), is_scalar=aval.shape == ()), aval.shape)


def _pattern(dtype: np.dtype, *, is_scalar: bool) -> np.ndarray:
    if dtype == np.bool_ or jax.dtypes.issubdtype(dtype, np.integer):
        # The narrowest integers of JAX hold 0 and 1 and little more.
        limit = 2 if dtype == np.bool_ or jax.numpy.iinfo(dtype).bits < 8 else 100
        numbers = np.random.default_rng(0).integers(0, limit, _PATTERN_SIZE).astype(dtype)
        return np.zeros_like(numbers) if is_scalar else numbers
    return np.random.default_rng(0).uniform(0.005, 0.015, _PATTERN_SIZE).astype(dtype)


def _make_keys(aval: Any) -> jax.Array:
    implementation = _jax_compat.key_implementation(aval.dtype.name)
    keys = jax.random.key(0, impl=implementation)
    if aval.shape:
        keys = jax.random.split(keys, aval.shape)
    return keys
