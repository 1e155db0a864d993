"""The leaves of a state: which can be saved, their paths and types, and how they differ from those of a checkpoint."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxquard import _jax_compat
from jaxquard.errors import CheckpointError, DeletedArrayError
from jaxquard.runtime.checkpoint.files.leaf_records import LeafRecord, is_savable_dtype
from jaxquard.runtime.checkpoint.files.manifest import Manifest
from jaxquard.runtime.remote_array import RemoteArray
from jaxquard.runtime.transfer import is_key

NUMBERS = (bool, int, float, complex)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A leaf of a pytree and its path there."""

    path: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafType:
    """The shape and dtype of a leaf; `is_number` for a Python number, which fits every dtype of its kind."""

    shape: tuple[int, ...]
    dtype: str
    is_number: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def flatten(tree: Any) -> tuple[list[Leaf], Any]:
    """Returns the leaves with their paths, and the structure of the tree."""
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [Leaf(path=jax.tree_util.keystr(path), value=value) for path, value in pairs]
    paths = {leaf.path for leaf in leaves}
    if len(paths) < len(leaves):
        twice = next(path for path in paths if sum(leaf.path == path for leaf in leaves) > 1)
        raise CheckpointError(f"two leaves of the state have the path {twice}; each needs its own. Rename one.")
    return leaves, structure


def leaf_type(leaf: Leaf, *, what: str) -> LeafType:
    """Returns the type of a leaf that a checkpoint can hold.

    Args:
        what: the argument that it is part of.

    Raises:
        CheckpointError: if it is none.
    """
    value = leaf.value
    if isinstance(value, NUMBERS) and not isinstance(value, np.generic):
        dtype = np.asarray(value).dtype
        if dtype.kind != "O":
            return LeafType(shape=(), dtype=dtype.name, is_number=True)
    elif isinstance(value, RemoteArray):
        return LeafType(shape=value.type.shape, dtype=value.type.dtype)
    elif isinstance(value, jax.ShapeDtypeStruct | jax.Array | np.ndarray | np.generic) and _is_savable(value):
        return LeafType(shape=tuple(value.shape), dtype=value.dtype.name)
    raise CheckpointError(
        f"{what}{leaf.path} is {_shortened(value)} of type {type(value).__name__}, but a checkpoint holds arrays and "
        "numbers. Leave it out of the state."
    )


def check_alive(leaf: Leaf) -> None:
    """Raises if the values of a leaf are gone."""
    value = leaf.value
    if isinstance(value, RemoteArray | jax.Array) and value.is_deleted():
        raise DeletedArrayError(
            f"state{leaf.path} cannot be saved: it was donated to an earlier step, which has taken its buffers. Save "
            "what that step returned."
        )


def _is_savable(value: Any) -> bool:
    if isinstance(value, jax.core.Tracer):
        return False
    dtype = value.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
    return is_savable_dtype(dtype)


def _shortened(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


_MAX_NAMED = 5


def match_records(path: Path, manifest: Manifest, wanted: Sequence[tuple[str, LeafType]]) -> list[LeafRecord]:
    """Finds the record of each wanted leaf.

    Raises:
        CheckpointError: if the checkpoint is of another state.
    """
    records = {record.path: record for record in manifest.leaves}
    names = {name for name, _ in wanted}
    differences = [f"{name} is missing in it" for name, _ in wanted if name not in records]
    differences += [f"{name} is only in it" for name in records if name not in names]
    differences += [
        f"{name} is {records[name].type_text} in it and {type_} in `like`"
        for name, type_ in wanted
        if name in records and not _fits(records[name], type_)
    ]
    if differences:
        named = "; ".join(difference.lstrip() for difference in differences[:_MAX_NAMED])
        more = len(differences) - _MAX_NAMED
        raise CheckpointError(
            f"checkpoint {os.fspath(path)} is of another state: {named}{f'; and {more} more' if more > 0 else ''}. "
            "Pass a `like` with the leaves that were saved."
        )
    return [records[name] for name, _ in wanted]


def _fits(record: LeafRecord, type_: LeafType) -> bool:
    if record.shape != type_.shape:
        return False
    if type_.is_number and not is_key(record.dtype):
        return _kind(record.dtype) is _kind(type_.dtype)
    return record.dtype == type_.dtype


def _kind(dtype: str) -> type:
    kinds = (np.bool_, np.integer, np.floating, np.complexfloating)
    return next(kind for kind in kinds if jax.dtypes.issubdtype(_jax_compat.dtype_named(dtype), kind))
