"""Values in this process's memory: NumPy arrays, with random keys as their data.

NumPy has no random keys, so a key travels as the array of its words, with the name of its dtype (`key<fry>`) kept
beside it: in an `ArrayType`, a manifest or a message.
"""

from typing import Any

import jax
import numpy as np

from jaxquard import _jax_compat


def as_data(value: Any) -> np.ndarray:
    """Any array as a NumPy array; of random keys, their data."""
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        value = jax.random.key_data(value)
    return np.asarray(value)


def as_value(data: np.ndarray, dtype: str) -> np.ndarray | jax.Array:
    """What the data stand for, given the name of the dtype: random keys on the default device, or themselves."""
    if is_key(dtype):
        return jax.random.wrap_key_data(jax.numpy.asarray(data), impl=_jax_compat.key_implementation(dtype))
    return data


def is_key(dtype: str) -> bool:
    """Whether a dtype of this name is one of random keys."""
    return dtype.startswith("key<")
