"""Reads leaves onto actors: every actor the parts that it shall hold, all of them in one go."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.checkpoint.array_store import ArrayStore
from jaxquard.runtime.checkpoint.manifest import LeafRecord
from jaxquard.runtime.checkpoint.read_arrays import RowsWanted
from jaxquard.runtime.checkpoint.read_pieces import Checkpoint
from jaxquard.runtime.remote_array import RemoteArray, RemotePart


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPart:
    """A part of an array, and the actors that shall have a copy of it."""

    type: ArrayType
    actors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRequest:
    """A leaf, and where it shall be: its parts are stacked along the first dim."""

    record: LeafRecord
    store: ArrayStore
    parts: tuple[PlacedPart, ...]


def placed_like(array: RemoteArray) -> tuple[PlacedPart, ...]:
    """The parts of an array; its values may be gone."""
    return tuple(
        PlacedPart(type=part.type, actors=tuple(handle.actor for handle in part.copies)) for part in array.parts
    )


def read_remote(checkpoint: Checkpoint, requests: Sequence[RemoteRequest]) -> list[RemoteArray]:
    """One array for each request."""
    wanted: dict[ArrayStore, dict[int, dict[str, RowsWanted]]] = {}
    for number, request in enumerate(requests):
        start = 0
        for part_number, part in enumerate(request.parts):
            rows = RowsWanted(leaf=request.record, start=start, type=part.type)
            for actor in part.actors:
                of_actor = wanted.setdefault(request.store, {}).setdefault(actor, {})
                of_actor[f"{number}.{part_number}"] = rows
            start += part.type.shape[0] if part.type.shape else 1
    handles = {store: store.read(checkpoint, arrays) for store, arrays in wanted.items()}
    return [
        RemoteArray(
            parts=tuple(
                RemotePart(
                    type=part.type,
                    copies=tuple(handles[request.store][actor][f"{number}.{part_number}"] for actor in part.actors),
                )
                for part_number, part in enumerate(request.parts)
            )
        )
        for number, request in enumerate(requests)
    ]
