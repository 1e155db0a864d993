"""Starts to write all leaves of a state: remote ones by the actors that have them, the others by this process."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from jaxquard.pipeline.plan_init import Wanted
from jaxquard.runtime.checkpoint.array_store import ArrayStore, ArrayWriting, store_to_write
from jaxquard.runtime.checkpoint.files.digests import Checksums
from jaxquard.runtime.checkpoint.files.leaf_records import Piece
from jaxquard.runtime.checkpoint.files.write_pieces import PieceWriting, write_pieces
from jaxquard.runtime.checkpoint.leaves import Leaf
from jaxquard.runtime.initial_state import InitialArray
from jaxquard.runtime.remote_array import Handle, RemoteArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWriting:
    """A state that is in host memory, and on its way to disk.

    Attributes:
        pieces: for each leaf, in its own coordinates.
    """

    pieces: tuple[tuple[Piece, ...], ...]
    writes: tuple[ArrayWriting | PieceWriting, ...]

    def wait(self) -> Checksums:
        """Waits until nothing is being written any more; raises the first error.

        Returns:
            The checksum of every piece.
        """
        return _wait_for(self.writes)


def write_state(folder: Path, leaves: Sequence[Leaf]) -> StateWriting:
    """Copies all leaves to host memory and starts to write them; if it raises, nothing is being written."""
    _place_initial([leaf.value for leaf in leaves])
    writes: list[ArrayWriting | PieceWriting] = []
    pieces: list[list[Piece]] = [[] for _ in leaves]
    try:
        for number, (store, parts) in enumerate(_parts_by_store(leaves)):
            arrays: dict[int, dict[str, Handle]] = {}
            for part in parts:
                arrays.setdefault(part.handle.actor, {})[part.name] = part.handle
            writing = store.start_write(folder, f"{number}-" if number else "", arrays)
            writes.append(writing)
            for part in parts:
                found = writing.pieces[part.handle.actor][part.name]
                pieces[part.leaf] += [piece.shifted(part.start) for piece in found]
        writes.append(own := write_pieces(folder, "controller", _own_arrays(leaves)))
        for name, found in own.pieces.items():
            pieces[int(name)] += found
    except BaseException:
        with contextlib.suppress(Exception):
            _wait_for(writes)
        raise
    return StateWriting(pieces=tuple(map(tuple, pieces)), writes=tuple(writes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Rows of a leaf from `start` on, and the handle of the array that has them."""

    leaf: int
    number: int
    start: int
    handle: Handle

    @property
    def name(self) -> str:
        return f"{self.leaf}.{self.number}"


def _place_initial(values: Sequence[object]) -> None:
    """Builds state that no step has taken yet: whole, on the first actor, all leaves at once."""
    waiting: dict[object, list[InitialArray]] = {}
    for value in values:
        if isinstance(value, InitialArray) and not value.is_placed:
            waiting.setdefault(value.source, []).append(value)
    for arrays in waiting.values():
        arrays[0].source.build([Wanted(result=a.number, sizes=(), actors=((0,),), spec=()) for a in arrays])


def _parts_by_store(leaves: Sequence[Leaf]) -> list[tuple[ArrayStore, list[_Part]]]:
    by_store: dict[ArrayStore, list[_Part]] = {}
    for leaf_number, leaf in enumerate(leaves):
        if not isinstance(leaf.value, RemoteArray):
            continue
        start = 0
        for number, part in enumerate(leaf.value.parts):
            handle = part.pick()
            entry = _Part(leaf=leaf_number, number=number, start=start, handle=handle)
            by_store.setdefault(store_to_write(handle), []).append(entry)
            start += part.type.shape[0] if part.type.shape else 1
    return list(by_store.items())


def _own_arrays(leaves: Sequence[Leaf]) -> dict[str, jax.Array | np.ndarray]:
    return {
        str(number): leaf.value if isinstance(leaf.value, jax.Array) else np.asarray(leaf.value)
        for number, leaf in enumerate(leaves)
        if not isinstance(leaf.value, RemoteArray)
    }


def _wait_for(writes: Sequence[ArrayWriting | PieceWriting]) -> Checksums:
    first: Exception | None = None
    checksums: Checksums = {}
    for writing in writes:
        try:
            checksums |= writing.wait()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
    return checksums
