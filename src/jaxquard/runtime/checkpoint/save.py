"""`save`: every process copies what it holds to host memory, then writes it while training goes on."""

import logging
import os
import uuid
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

from jaxquard.errors import CheckpointError, JaxquardError, StaleOwnerError
from jaxquard.runtime.checkpoint.files.background import BackgroundCall
from jaxquard.runtime.checkpoint.files.disk import check_space, write_error
from jaxquard.runtime.checkpoint.files.folders import (
    SAVES,
    checkpoint_path,
    claim_path,
    commit,
    make_unfinished,
    remove,
)
from jaxquard.runtime.checkpoint.files.leaf_records import LeafRecord, data_type_of
from jaxquard.runtime.checkpoint.files.manifest import Manifest
from jaxquard.runtime.checkpoint.files.orbax_files import require_orbax
from jaxquard.runtime.checkpoint.files.ownership.claims import OwnerClaim
from jaxquard.runtime.checkpoint.leaves import Leaf, LeafType, check_alive, flatten, leaf_type
from jaxquard.runtime.checkpoint.write_state import write_state

_logger = logging.getLogger(__name__)


class Saving:
    """A checkpoint that is being written in the background."""

    def __init__(self, *, path: Path, call: BackgroundCall) -> None:
        self.path = path
        self._call = call

    def wait(self) -> None:
        """Waits until the checkpoint is whole and in its place.

        Raises:
            CheckpointError: if it could not be written. What was at the path before is still there.
        """
        self._call.wait()

    def is_done(self) -> bool:
        """Returns True once nothing is being written any more; `wait` then raises what went wrong."""
        return self._call.is_done()

    def __repr__(self) -> str:
        return f"Saving({os.fspath(self.path)!r}, {'done' if self.is_done() else 'in progress'})"


def save(path: str | os.PathLike[str], state: Any) -> Saving:
    """Saves a state in the background; each actor writes its own parts.

    This returns as soon as everything is copied to host memory, so that the next step may donate the state. The
    checkpoint appears at `path` atomically and replaces an older one; after a crash, the old or the new one is there.
    A second save to the same path waits for the first, and the interpreter waits at exit.

    Args:
        path: a folder, on a file system that all hosts of the actors share.
        state: a pytree of RemoteArrays, arrays and numbers.

    Returns:
        The save, to `wait()` for. An error while writing is raised there, and logged.

    Raises:
        CheckpointError: if the state or the path cannot be saved, or the disk has too little room.
        CheckpointOwnedError: if another program that is alive saves to this path.
        StaleOwnerError: if another program has begun to, because this one gave no heartbeat for a minute.
        DeletedArrayError: if a step has donated an array of the state.
        TaskFailed: if an array was never computed.

    Example:
        >>> import tempfile
        >>> state = {"step": 3, "params": jnp.arange(4.0)}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jq.save(f"{folder}/checkpoint", state).wait()
        ...     jq.restore(f"{folder}/checkpoint", like=state)["step"]
        3
    """
    return start_save(checkpoint_path(path), state, claim=None)


def start_save(
    target: Path, state: Any, *, claim: OwnerClaim | None, then: Callable[[], None] = lambda: None
) -> Saving:
    """Saves a state for the owner of the path, or of the folder that it is in; without a claim, this makes one.

    Args:
        then: called in the background once the checkpoint is in its place; its errors are logged.
    """
    require_orbax()
    leaves, _ = flatten(state)
    types = [leaf_type(leaf, what="state") for leaf in leaves]
    for leaf in leaves:
        check_alive(leaf)
    SAVES.take(target)
    try:
        return _start(target, leaves, types, claim or claim_path(target), then)
    except BaseException:
        SAVES.free(target)
        raise


def _start(
    path: Path, leaves: Sequence[Leaf], types: Sequence[LeafType], claim: OwnerClaim, then: Callable[[], None]
) -> Saving:
    needed_bytes = sum(map(_size_bytes, types))
    id_ = uuid.uuid4().hex
    claim.check()
    folder = make_unfinished(path, id_, fence=claim.fence)
    try:
        check_space(folder, needed_bytes)
        claim.check()
        writing = write_state(folder, leaves)
        records = [
            LeafRecord(path=leaf.path, dtype=type_.dtype, shape=type_.shape, pieces=pieces)
            for leaf, type_, pieces in zip(leaves, types, writing.pieces, strict=True)
        ]
    except BaseException:
        remove(folder)
        raise

    def finish() -> None:
        try:
            checksums = writing.wait()
            _check_written(folder, records)
            digested = tuple(record.with_digests(checksums) for record in records)
            Manifest(id=id_, leaves=digested, fence=claim.fence).write(folder)
            claim.check()
            commit(folder, path)
        except Exception as error:
            known = _known_error(error, claim, folder, needed_bytes)
            remove(folder)
            _logger.error("jq.save: %s", known)
            raise known from (error if known is not error else error.__cause__)
        finally:
            SAVES.free(path)
        try:
            then()
        except Exception:
            _logger.exception("jq.save: the checkpoint is written, but what follows failed")

    return Saving(path=path, call=BackgroundCall(finish, name="jaxquard-save"))


def _known_error(error: Exception, claim: OwnerClaim, folder: Path, needed_bytes: int) -> JaxquardError:
    """Finds out why a save failed; another owner renames the folder away, and then it seems to be gone."""
    try:
        claim.check()
    except StaleOwnerError as stale:
        return stale
    except OSError:
        pass
    return write_error(error, folder, needed_bytes)


def _size_bytes(type_: LeafType) -> int:
    data = data_type_of(type_.dtype)
    return prod((*type_.shape, *data.tail)) * data.itemsize


def _check_written(folder: Path, leaves: Sequence[LeafRecord]) -> None:
    """Checks that this host sees all that the writers say they wrote."""
    for leaf in leaves:
        assert sum(piece.region.size for piece in leaf.pieces) == prod(leaf.data_shape), leaf
    for name in sorted({piece.folder for leaf in leaves for piece in leaf.pieces}):
        if not (folder / name).is_dir():
            raise CheckpointError(
                f"{name} was written into {os.fspath(folder.parent)} on another host, but is not seen on this one. "
                "Save to a path on a file system that all hosts share."
            )
