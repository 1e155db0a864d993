"""The type in which a leaf is on disk: its own, or for random keys that of their data."""

import functools
from dataclasses import dataclass

import jax
import numpy as np

from jaxquard import _jax_compat
from jaxquard.runtime.checkpoint.manifest import LeafRecord
from jaxquard.runtime.host_value import is_key


@dataclass(frozen=True, slots=True, kw_only=True)
class DataType:
    """A dtype of NumPy, and the dims that data has beyond those of the leaf."""

    dtype: np.dtype
    tail: tuple[int, ...] = ()

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize


def data_type(leaf: LeafRecord) -> DataType:
    """Of a leaf."""
    return data_type_of(leaf.dtype)


@functools.cache
def data_type_of(dtype: str) -> DataType:
    """Given the name of a dtype."""
    if not is_key(dtype):
        return DataType(dtype=_jax_compat.dtype_named(dtype))
    make = functools.partial(jax.random.key, 0, impl=_jax_compat.key_implementation(dtype))
    data = jax.eval_shape(lambda: jax.random.key_data(make()))
    return DataType(dtype=np.dtype(data.dtype), tail=data.shape)
