"""The part of an engine that checkpoints use: its actors write the arrays they hold, and read new ones.

The controller decides what is written where and keeps the manifest; the bytes go between the actors and the disk. An
engine's token is its `ArrayStore`, and the handles of its arrays know the token. Actors of this process are one
process, so they share one orbax checkpoint (`InProcessStore`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from jax.sharding import Mesh

from jaxquard.errors import CheckpointError
from jaxquard.runtime.checkpoint.files.digests import Checksums
from jaxquard.runtime.checkpoint.files.read_arrays import RowsWanted, rows_job
from jaxquard.runtime.checkpoint.files.read_pieces import Checkpoint, read_jobs
from jaxquard.runtime.checkpoint.files.write_pieces import PieceTable, PieceWriting, write_pieces
from jaxquard.runtime.checkpoint.leaves import Leaf
from jaxquard.runtime.engine import ActorMesh
from jaxquard.runtime.remote_array import Handle
from jaxquard.runtime.result_cell import ResultCell
from jaxquard.runtime.transfer import sharding_on


class ArrayWriting(Protocol):
    """A write under way: arrays of all actors that are in host memory and not yet all on disk."""

    @property
    def pieces(self) -> Mapping[int, PieceTable]:
        """For each actor and name, the pieces that its processes write; together they cover the array."""
        ...

    def wait(self) -> Checksums:
        """Waits until all are on disk; raises the first error, when no process writes any more.

        Returns:
            The checksum of every piece.
        """
        ...


@runtime_checkable
class ArrayStore(Protocol):
    """The actors of one engine. It does not keep the engine alive: arrays may outlive it."""

    def start_write(self, folder: Path, prefix: str, arrays: Mapping[int, Mapping[str, Handle]]) -> ArrayWriting:
        """Has every actor write some of its arrays (see `write_pieces`).

        Returns when all are in host memory, so that the next step may donate them.

        Args:
            folder: of the unfinished checkpoint.
            prefix: begins the names of the orbax checkpoints in it.
            arrays: for each actor, the arrays to write, under names.

        Raises:
            DeletedArrayError, TaskFailed: for an array that is not there; then nothing is being written.
        """
        ...

    def read(
        self, checkpoint: Checkpoint, arrays: Mapping[int, Mapping[str, RowsWanted]]
    ) -> Mapping[int, Mapping[str, Handle]]:
        """Has every actor read some arrays (see `read_pieces` and `rows_job`), and returns handles of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    pieces: Mapping[int, PieceTable]
    writing: PieceWriting

    def wait(self) -> Checksums:
        return self.writing.wait()


class InProcessStore:
    """An `ArrayStore` for actors of this process.

    Args:
        meshes: of each actor; needed for reading only.
    """

    def __init__(self, meshes: Mapping[int, Mesh]) -> None:
        self._meshes = meshes

    def start_write(self, folder: Path, prefix: str, arrays: Mapping[int, Mapping[str, Handle]]) -> ArrayWriting:
        buffers = {
            f"{actor} {name}": handle.wait_ready() for actor, held in arrays.items() for name, handle in held.items()
        }
        writing = write_pieces(folder, f"{prefix}actors", buffers)
        pieces = {actor: {name: writing.pieces[f"{actor} {name}"] for name in held} for actor, held in arrays.items()}
        return _Writing(pieces=pieces, writing=writing)

    def read(
        self, checkpoint: Checkpoint, arrays: Mapping[int, Mapping[str, RowsWanted]]
    ) -> Mapping[int, Mapping[str, Handle]]:
        places = [(actor, name) for actor, wanted in arrays.items() for name in wanted]
        jobs = [
            rows_job(wanted, sharding_on(self._meshes[actor], wanted.type))
            for actor, held in arrays.items()
            for wanted in held.values()
        ]
        cells: dict[int, dict[str, Handle]] = {actor: {} for actor in arrays}
        for (actor, name), array in zip(places, read_jobs(checkpoint, jobs), strict=True):
            cells[actor][name] = ResultCell(actor=actor, buffer=array, owner=self)
        return cells


_HERE = InProcessStore({})


def store_to_write(handle: Handle) -> ArrayStore:
    """Finds the store that writes an array; one of no engine is in this process."""
    return _owner(handle) or _HERE


def store_of_mesh(mesh: ActorMesh) -> ArrayStore:
    """Returns the store that reads arrays for a mesh."""
    token = mesh.engine.token
    assert isinstance(token, ArrayStore)
    return token


def store_to_read(leaf: Leaf) -> ArrayStore:
    """Finds the store that reads an array like this one, a RemoteArray that is placed.

    Raises:
        CheckpointError: if it is of no mesh.
    """
    handles = (handle for part in leaf.value.parts for handle in part.copies)
    found = next(filter(None, map(_owner, handles)), None)
    if found is None:
        raise CheckpointError(f"like{leaf.path} does not say which mesh it is on. Pass mesh=.")
    return found


def _owner(handle: Handle) -> ArrayStore | None:
    return handle.owner if isinstance(handle.owner, ArrayStore) else None
