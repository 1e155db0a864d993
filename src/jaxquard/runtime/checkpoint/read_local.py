"""Leaves that this process holds itself: JAX arrays, NumPy arrays and numbers."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Sharding

from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.checkpoint.leaf_types import NUMBERS
from jaxquard.runtime.checkpoint.manifest import LeafRecord
from jaxquard.runtime.checkpoint.read_arrays import RowsWanted, rows_job, value_job
from jaxquard.runtime.checkpoint.read_pieces import ReadJob
from jaxquard.runtime.host_value import as_value


def local_job(record: LeafRecord, like: Any) -> ReadJob:
    """Makes a leaf of the kind of `like`, with its sharding if it has one."""
    sharding = _sharding(like)
    if sharding is not None:
        type_ = ArrayType(dtype=record.dtype, shape=record.shape)
        return rows_job(RowsWanted(leaf=record, start=0, type=type_), sharding)
    whole = value_job(record)
    return ReadJob(leaf=record, regions=whole.regions, make=lambda read: _of_kind(whole.make(read), record.dtype, like))


def _sharding(like: Any) -> Sharding | None:
    """Where JAX has been told to keep the leaf; None if it may choose."""
    if isinstance(like, jax.Array):
        return like.sharding if like.committed else None
    sharding = getattr(like, "sharding", None)
    return None if isinstance(getattr(sharding, "mesh", None), AbstractMesh) else sharding


def _of_kind(data: np.ndarray, dtype: str, like: Any) -> Any:
    if isinstance(like, np.generic):
        return data[()]
    if isinstance(like, NUMBERS):
        return type(like)(data.item())
    if isinstance(like, np.ndarray):
        return data if data.flags.writeable and data.base is None else data.copy()
    with jax.enable_x64(True):
        return jax.numpy.asarray(as_value(data, dtype))
