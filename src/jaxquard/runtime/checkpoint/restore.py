"""`restore`: brings a checkpoint back in the layout of another state; every process reads just what it holds."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Sharding

from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.checkpoint.array_store import store_to_read
from jaxquard.runtime.checkpoint.files.folders import SAVES, checkpoint_path
from jaxquard.runtime.checkpoint.files.leaf_records import LeafRecord
from jaxquard.runtime.checkpoint.files.manifest import Manifest
from jaxquard.runtime.checkpoint.files.orbax_files import require_orbax
from jaxquard.runtime.checkpoint.files.read_arrays import RowsWanted, rows_job, value_job
from jaxquard.runtime.checkpoint.files.read_pieces import Checkpoint, ReadJob, read_jobs
from jaxquard.runtime.checkpoint.leaves import NUMBERS, Leaf, flatten, leaf_type, match_records
from jaxquard.runtime.checkpoint.read_current import read_current
from jaxquard.runtime.checkpoint.read_remote import RemoteRequest, RestoredState, placed_like, read_remote
from jaxquard.runtime.engine import ActorMesh
from jaxquard.runtime.initial_state import InitialArray
from jaxquard.runtime.remote_array import RemoteArray
from jaxquard.runtime.transfer import as_value


def local_job(record: LeafRecord, like: Any) -> ReadJob:
    """Makes a leaf of the kind of `like`, with its sharding if it has one."""
    sharding = _sharding(like)
    if sharding is not None:
        type_ = ArrayType(dtype=record.dtype, shape=record.shape)
        return rows_job(RowsWanted(leaf=record, start=0, type=type_), sharding)
    whole = value_job(record)
    return ReadJob(leaf=record, regions=whole.regions, make=lambda read: _of_kind(whole.make(read), record.dtype, like))


def _sharding(like: Any) -> Sharding | None:
    """Returns the sharding that the leaf is committed to; None if JAX may choose."""
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


def restore(path: str | os.PathLike[str], *, like: Any, mesh: ActorMesh | None = None) -> Any:
    """Restores a state that `save` has written, in the layout of `like`.

    The layout in which it was saved does not matter: other actors, stages and meshes, and plain arrays, get the very
    same bits. A save to the same path that is still in progress is waited for.

    Args:
        path: as given to `save`.
        like: a pytree with the leaves that were saved. Where each of its leaves is, the restored one will be:

            - a `RemoteArray`, also one whose values are gone: on the same actors, in the same parts and shardings;
            - a `RemoteArray` from `RemoteMesh.init` that no step has used: where the first step needs it. It is
              read only then, so keep the checkpoint until then;
            - a `jax.Array` or a `jax.ShapeDtypeStruct` with a sharding: with this sharding;
            - a NumPy array or a number: the same.
        mesh: a `RemoteMesh`. Turns `jax.ShapeDtypeStruct`s, and RemoteArrays of other meshes, into RemoteArrays of this
            mesh, which the first step places.

    Raises:
        CheckpointError: if there is no checkpoint, it cannot be read, or it holds another state.

    Example:
        >>> import tempfile
        >>> state = {"step": 3, "params": jnp.arange(4.0)}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jq.save(f"{folder}/checkpoint", state).wait()
        ...     restored = jq.restore(f"{folder}/checkpoint", like=state)
        >>> restored["params"].tolist()
        [0.0, 1.0, 2.0, 3.0]
    """
    require_orbax()
    target = checkpoint_path(path)
    with SAVES.taken(target):
        return read_current(target, lambda folder, manifest: _read_like(target, folder, manifest, like, mesh))


def _read_like(target: Path, folder: Path, manifest: Manifest, like: Any, mesh: ActorMesh | None) -> Any:
    leaves, structure = flatten(like)
    wanted = [(leaf.path, leaf_type(leaf, what="like")) for leaf in leaves]
    records = match_records(target, manifest, wanted)
    checkpoint = Checkpoint(path=folder, id=manifest.id)
    return jax.tree.unflatten(structure, _read(checkpoint, leaves, records, mesh))


def _read(
    checkpoint: Checkpoint, leaves: Sequence[Leaf], records: Sequence[LeafRecord], mesh: ActorMesh | None
) -> list[Any]:
    """Restores each leaf."""
    restored: dict[int, Any] = {}
    deferred: dict[Any, list[int]] = {}
    placed, local = [], []
    for number, leaf in enumerate(leaves):
        home = _home(leaf.value, mesh)
        if home is not None:
            deferred.setdefault(home, []).append(number)
        else:
            (placed if isinstance(leaf.value, RemoteArray) else local).append(number)
    requests = [
        RemoteRequest(
            record=records[number], store=store_to_read(leaves[number]), parts=placed_like(leaves[number].value)
        )
        for number in placed
    ]
    jobs = [local_job(records[number], leaves[number].value) for number in local]
    restored |= zip(local, read_jobs(checkpoint, jobs), strict=True)
    restored |= zip(placed, read_remote(checkpoint, requests), strict=True)
    for home, numbers in deferred.items():
        state = RestoredState(checkpoint=checkpoint, records=[records[number] for number in numbers], mesh=home)
        restored |= zip(numbers, state.arrays(), strict=True)
    return [restored[number] for number in range(len(leaves))]


def _home(like: Any, mesh: ActorMesh | None) -> ActorMesh | None:
    """Returns the mesh on which a leaf will be placed later; None if it is placed now."""
    if isinstance(like, InitialArray) and not like.is_placed:
        return mesh or like.source.mesh
    if isinstance(like, jax.ShapeDtypeStruct):
        return mesh
    if isinstance(like, RemoteArray) and mesh is not None and _is_elsewhere(like, mesh):
        return mesh
    return None


def is_read_later(like: Any, mesh: ActorMesh | None) -> bool:
    """Returns True if a part of the state is read when the first step says where it belongs."""
    leaves, _ = flatten(like)
    return any(_home(leaf.value, mesh) is not None for leaf in leaves)


def _is_elsewhere(like: RemoteArray, mesh: ActorMesh) -> bool:
    return any(handle.owner is not mesh.engine.token for part in like.parts for handle in part.copies)
