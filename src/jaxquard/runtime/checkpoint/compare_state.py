"""Holds a checkpoint against the state that it shall become, and says what differs."""

import os
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from jaxquard import _jax_compat
from jaxquard.errors import CheckpointError
from jaxquard.runtime.checkpoint.leaf_types import LeafType
from jaxquard.runtime.checkpoint.manifest import LeafRecord, Manifest
from jaxquard.runtime.host_value import is_key

_MOST_NAMED = 5


def match_records(path: Path, manifest: Manifest, wanted: Sequence[tuple[str, LeafType]]) -> list[LeafRecord]:
    """For each wanted leaf its record.

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
        named = "; ".join(difference.lstrip() for difference in differences[:_MOST_NAMED])
        more = len(differences) - _MOST_NAMED
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
