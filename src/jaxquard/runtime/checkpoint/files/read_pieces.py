"""Reads boxes of leaves from the pieces of a checkpoint.

This runs where the arrays are wanted: in a worker of an actor, or in the controller. Only pieces that overlap what is
wanted are read, and each once. What is wanted is gone through leaf by leaf, so that just a few leaves at a time are in
host memory as pieces.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from jaxquard.errors import CheckpointError, DamagedCheckpointError, JaxquardError
from jaxquard.runtime.checkpoint.files.digests import checksums_of
from jaxquard.runtime.checkpoint.files.disk import one_line
from jaxquard.runtime.checkpoint.files.leaf_records import LeafRecord, Piece, data_type
from jaxquard.runtime.checkpoint.files.manifest import read_id
from jaxquard.runtime.checkpoint.files.orbax_files import UnreadableArrayError, read_arrays, require_orbax
from jaxquard.runtime.checkpoint.files.regions import Region

_BATCH_BYTES = 1 << 30


class ReplacedCheckpointError(CheckpointError):
    """The checkpoint that was being read is not there any more, or a newer one is in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A folder, and the id of the checkpoint that was found in it. It can be pickled."""

    path: Path
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadJob:
    """A value to be made from boxes of one leaf.

    Attributes:
        regions: the boxes, in dims of the leaf's data.
        make: makes it, given a function that returns a box; called once all are in memory.
    """

    leaf: LeafRecord
    regions: tuple[Region, ...]
    make: Callable[[Callable[[Region], np.ndarray]], Any]


def read_jobs(checkpoint: Checkpoint, jobs: Sequence[ReadJob]) -> list[Any]:
    """Reads what each job needs, and returns what it makes.

    Raises:
        CheckpointError: if the checkpoint is not there any more, or cannot be read.
    """
    require_orbax()
    made: dict[int, Any] = {}
    with _all_of_one(checkpoint):
        for batch in _batches(jobs):
            wanted = [(jobs[number].leaf, piece) for number in batch for piece in _needed(jobs[number])]
            loaded = _load(checkpoint.path, wanted)
            for number in batch:
                made[number] = jobs[number].make(_reader(jobs[number].leaf, loaded))
    return [made[number] for number in range(len(jobs))]


@contextlib.contextmanager
def _all_of_one(checkpoint: Checkpoint) -> Iterator[None]:
    """Raises in the end if what was read is not of this checkpoint; names what cannot be read."""
    try:
        yield
    except Exception as error:
        _check_same(checkpoint)
        if isinstance(error, JaxquardError):
            raise
        raise CheckpointError(
            f"{os.fspath(checkpoint.path)} cannot be read on {socket.gethostname()}: {one_line(error)}."
        ) from error
    # A checkpoint that is replaced never comes back, so what was read before this is all of one.
    _check_same(checkpoint)


def check_pieces(
    checkpoint: Checkpoint, leaves: Sequence[LeafRecord], *, on_progress: Callable[[int, int, str], None]
) -> None:
    """Reads all pieces of leaves and compares them with their digests, a GiB or one piece at a time.

    Args:
        on_progress: called with the number of bytes read, the number of all, and the path of a leaf.

    Raises:
        DamagedCheckpointError: for the first piece that is not as it was written.
    """
    total_bytes, done_bytes = sum(leaf.size_bytes for leaf in leaves), 0
    for batch in _piece_batches(leaves):
        with _all_of_one(checkpoint):
            _load(checkpoint.path, batch)
        done_bytes += sum(piece.region.size * data_type(leaf).itemsize for leaf, piece in batch)
        on_progress(done_bytes, total_bytes, batch[-1][0].path)


def _piece_batches(leaves: Sequence[LeafRecord]) -> Iterator[list[tuple[LeafRecord, Piece]]]:
    """Yields the pieces of leaves, as many together as a GiB holds, and one that is larger alone."""
    batch: list[tuple[LeafRecord, Piece]] = []
    batch_bytes = 0
    for leaf in leaves:
        for piece in leaf.pieces:
            size_bytes = piece.region.size * data_type(leaf).itemsize
            if batch and batch_bytes + size_bytes > _BATCH_BYTES:
                yield batch
                batch, batch_bytes = [], 0
            batch.append((leaf, piece))
            batch_bytes += size_bytes
    if batch:
        yield batch


def read_region(checkpoint: Checkpoint, leaf: LeafRecord, region: Region) -> np.ndarray:
    """Reads one box of one leaf; of random keys, of their data."""
    return read_jobs(checkpoint, [ReadJob(leaf=leaf, regions=(region,), make=lambda read: read(region))])[0]


def _batches(jobs: Sequence[ReadJob]) -> Iterator[list[int]]:
    """Yields the jobs whose pieces are in memory together: all of a leaf, and of several if they are small."""
    by_leaf: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        by_leaf.setdefault(job.leaf.path, []).append(number)
    batch: list[int] = []
    size_bytes = 0
    for numbers in by_leaf.values():
        pieces = {piece for number in numbers for piece in _needed(jobs[number])}
        leaf_bytes = sum(piece.region.size for piece in pieces) * data_type(jobs[numbers[0]].leaf).itemsize
        if batch and size_bytes + leaf_bytes > _BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
        batch += numbers
        size_bytes += leaf_bytes
    if batch:
        yield batch


def _needed(job: ReadJob) -> list[Piece]:
    return [
        piece for piece in job.leaf.pieces if any(piece.region.overlap(region) is not None for region in job.regions)
    ]


def _load(path: Path, wanted: Sequence[tuple[LeafRecord, Piece]]) -> dict[tuple[str, str], np.ndarray]:
    """Reads pieces, and compares each with its digest."""
    loaded: dict[tuple[str, str], np.ndarray] = {}
    leaves: dict[str, dict[str, tuple[LeafRecord, Piece]]] = {}
    for leaf, piece in wanted:
        leaves.setdefault(piece.folder, {})[piece.key] = (leaf, piece)
    for folder, pieces in leaves.items():
        check_inside(path, folder)
        sizes_bytes = {key: piece.region.size * data_type(leaf).itemsize for key, (leaf, piece) in pieces.items()}
        try:
            arrays = read_arrays(path / folder, sizes_bytes)
        except UnreadableArrayError as error:
            kind = DamagedCheckpointError if error.is_damaged else CheckpointError
            raise kind(
                f"{os.fspath(path)} cannot be read on {socket.gethostname()}: {pieces[error.key][0].path} "
                f"({folder}/{error.key}): {error.why}. Restore another checkpoint."
            ) from error
        _check_digests(path, arrays, pieces)
        loaded |= {(folder, key): array for key, array in arrays.items()}
    return loaded


def check_inside(path: Path, folder: str) -> None:
    """Raises if a folder of the checkpoint has a symbolic link that leads out of it: it may come from a stranger."""
    top = os.path.realpath(path)
    places = [os.path.join(path, folder)]
    for parent, folders, names in os.walk(places[0]):
        places += [os.path.join(parent, name) for name in (*folders, *names)]
    for place in places:
        if os.path.islink(place) and not os.path.realpath(place).startswith(f"{top}{os.sep}"):
            raise DamagedCheckpointError(
                f"{os.fspath(path)} is damaged: {os.path.relpath(place, path)} is a link to a place outside of it. "
                "Restore another checkpoint."
            )


def _check_digests(
    path: Path, arrays: Mapping[str, np.ndarray], pieces: Mapping[str, tuple[LeafRecord, Piece]]
) -> None:
    checked = {key: array for key, array in arrays.items() if pieces[key][1].digest is not None}
    with checksums_of(checked) as in_progress:
        for key, checksum in in_progress.result().items():
            leaf, piece = pieces[key]
            if leaf.digest_of(piece, checksum) != piece.digest:
                raise DamagedCheckpointError(
                    f"{os.fspath(path)} is damaged: the bytes of {leaf.path} ({piece.folder}/{key}) are not those "
                    "that were saved. Restore another checkpoint."
                )


def _reader(leaf: LeafRecord, loaded: dict[tuple[str, str], np.ndarray]) -> Callable[[Region], np.ndarray]:
    boxes: dict[Region, np.ndarray] = {}

    def read(region: Region) -> np.ndarray:
        if region not in boxes:
            boxes[region] = _assemble(leaf, region, loaded)
        return boxes[region]

    return read


def _assemble(leaf: LeafRecord, region: Region, loaded: dict[tuple[str, str], np.ndarray]) -> np.ndarray:
    dtype = data_type(leaf).dtype
    shared = [(piece, piece.region.overlap(region)) for piece in leaf.pieces]
    whole = next((piece for piece, box in shared if piece.region == region and box is not None), None)
    if whole is not None:
        return _values(loaded[whole.folder, whole.key], whole, dtype)
    result = np.empty(region.shape, dtype)
    num_filled = 0
    for piece, box in shared:
        if box is not None:
            values = _values(loaded[piece.folder, piece.key], piece, dtype)
            result[box.slices_in(region)] = values[box.slices_in(piece.region)]
            num_filled += box.size
    if num_filled != prod(region.shape):
        raise CheckpointError(f"the checkpoint lacks a part of {leaf.path}. Restore another checkpoint.")
    return result


def _values(stored: np.ndarray, piece: Piece, dtype: np.dtype) -> np.ndarray:
    values = stored if stored.dtype == dtype else stored.view(dtype)
    return values.reshape(piece.region.shape)


def _check_same(checkpoint: Checkpoint) -> None:
    found = read_id(checkpoint.path)
    if found == checkpoint.id:
        return
    what = (
        f"is not there any more, or not seen from {socket.gethostname()}. Keep it until the first step has taken the "
        "restored state, on a file system that all hosts share"
        if found is None
        else "was replaced by a newer one after jq.restore. Restore again"
    )
    raise ReplacedCheckpointError(f"checkpoint {os.fspath(checkpoint.path)} {what}.")
