"""Writes the arrays that this process has: first into its memory, then, in the background, to disk.

This runs where the arrays are: in a worker of an actor, or in the controller. An array gives one piece for each
distinct shard that a device of this process has; of copies, whatever process has them, just one is written. The pieces
of one call make one orbax checkpoint.
"""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from jaxquard.errors import CheckpointError
from jaxquard.runtime.checkpoint.files.background import BackgroundCall
from jaxquard.runtime.checkpoint.files.digests import Checksums, checksums_of
from jaxquard.runtime.checkpoint.files.disk import sync_tree, write_error
from jaxquard.runtime.checkpoint.files.leaf_records import Piece
from jaxquard.runtime.checkpoint.files.orbax_files import require_orbax, write_arrays
from jaxquard.runtime.checkpoint.files.regions import Region

PieceTable = dict[str, tuple[Piece, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceWriting:
    """Pieces that are in memory, and on their way to disk.

    Attributes:
        pieces: for each name, the pieces of its array that this process writes. It can be pickled.
    """

    pieces: PieceTable
    checksums: Checksums
    call: BackgroundCall

    def wait(self) -> Checksums:
        """Waits until they are on disk, also after a power cut.

        Returns:
            The checksum of each piece.

        Raises:
            CheckpointError: if they could not be written.
        """
        self.call.wait()
        return self.checksums

    def is_done(self) -> bool:
        return self.call.is_done()


def write_pieces(folder: Path, name: str, arrays: Mapping[str, jax.Array | np.ndarray]) -> PieceWriting:
    """Copies arrays to host memory and starts to write them into the new folder `folder / name`.

    Once this returns the arrays may be overwritten, donated or deleted.

    Args:
        folder: the unfinished checkpoint, which the controller has made.
        name: of the orbax checkpoint in it; no other process uses it.
        arrays: under names of the caller's choice. Random keys are written as their data.

    Raises:
        CheckpointError: if this host does not see the folder, or has no orbax.
    """
    require_orbax()
    if not folder.is_dir():
        raise CheckpointError(
            f"{os.fspath(folder.parent)} is not the same folder on {socket.gethostname()} as on the controller. "
            "Save to a path on a file system that all hosts share."
        )
    pieces: PieceTable = {}
    stored: dict[str, np.ndarray] = {}
    for array_name, shards in _start_copies(arrays).items():
        found = []
        for region, copy in shards:
            key = f"p{len(stored)}"
            stored[key] = copy()
            found.append(Piece(folder=name, key=key, region=region))
        pieces[array_name] = tuple(found)
    checksums: Checksums = {}
    call = BackgroundCall(lambda: _write(folder, name, stored, checksums), name="jaxquard-write-pieces")
    return PieceWriting(pieces=pieces, checksums=checksums, call=call)


def _write(folder: Path, name: str, stored: dict[str, np.ndarray], checksums: Checksums) -> None:
    """Writes arrays, and computes their checksums meanwhile."""
    if not stored:
        return
    try:
        with checksums_of(stored) as in_progress:
            write_arrays(folder / name, stored)
            sync_tree(folder / name)
            checksums |= {(name, key): checksum for key, checksum in in_progress.result().items()}
    except Exception as error:
        needed_bytes = sum(array.nbytes for array in stored.values())
        raise write_error(error, folder, needed_bytes) from error
    finally:
        stored.clear()


_Shards = list[tuple[Region, Callable[[], np.ndarray]]]


def _start_copies(arrays: Mapping[str, jax.Array | np.ndarray]) -> dict[str, _Shards]:
    """Starts to copy all shards to the host; returns, for each array, its shards and functions that get them."""
    return {name: _shards(array) for name, array in arrays.items()}


def _shards(array: jax.Array | np.ndarray) -> _Shards:
    if not isinstance(array, jax.Array):
        host = np.asarray(array)
        return [] if host.size == 0 else [(Region.whole(host.shape), lambda: _own_copy(host))]
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    if array.size == 0:
        return []
    shards: _Shards = []
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            if not _is_cpu(shard.data):
                shard.data.copy_to_host_async()
            shards.append((Region.of_index(shard.index, array.shape), _copier(shard.data)))
    return shards


def _copier(data: jax.Array) -> Callable[[], np.ndarray]:
    """Returns a function that copies; on CPU, NumPy would see the array's own memory, elsewhere it is a copy anyway."""
    return lambda: _own_copy(np.asarray(data)) if _is_cpu(data) else np.asarray(data)


def _is_cpu(data: jax.Array) -> bool:
    """Returns True for host memory. JAX 0.11 keeps such an array's buffer if a copy was asked for."""
    return all(device.platform == "cpu" for device in data.devices())


def _own_copy(array: np.ndarray) -> np.ndarray:
    """Copies an array: dense, in this machine's byte order."""
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
