"""Reads leaves onto actors: every actor the parts that it holds, all of them at once.

State that no step has taken yet (`RestoredState`) is read once a step says where it belongs. To a step it is state from
`RemoteMesh.init` (see `initial_state`), which is read instead of computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from jaxquard import _jax_compat
from jaxquard.ir.array_type import ArrayType
from jaxquard.pipeline.plan_init import Wanted
from jaxquard.runtime.checkpoint.array_store import ArrayStore, store_of_mesh
from jaxquard.runtime.checkpoint.files.leaf_records import LeafRecord
from jaxquard.runtime.checkpoint.files.read_arrays import RowsWanted
from jaxquard.runtime.checkpoint.files.read_pieces import Checkpoint
from jaxquard.runtime.engine import ActorMesh
from jaxquard.runtime.initial_state import InitialArray
from jaxquard.runtime.remote_array import RemoteArray, RemotePart


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPart:
    """A part of an array, and the actors that get a copy of it."""

    type: ArrayType
    actors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRequest:
    """A leaf, and the place of each of its parts, which are stacked along the first dim."""

    record: LeafRecord
    store: ArrayStore
    parts: tuple[PlacedPart, ...]


def placed_like(array: RemoteArray) -> tuple[PlacedPart, ...]:
    """Returns the parts of an array, whose values may be gone."""
    return tuple(
        PlacedPart(type=part.type, actors=tuple(handle.actor for handle in part.copies)) for part in array.parts
    )


def read_remote(checkpoint: Checkpoint, requests: Sequence[RemoteRequest]) -> list[RemoteArray]:
    """Reads one array for each request."""
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


class RestoredState:
    """Leaves of a checkpoint that are not read yet."""

    def __init__(self, *, checkpoint: Checkpoint, records: Sequence[LeafRecord], mesh: ActorMesh) -> None:
        self.mesh = mesh
        self._checkpoint, self._records = checkpoint, records
        self._arrays = [
            InitialArray(
                source=self,
                number=number,
                aval=jax.ShapeDtypeStruct(record.shape, _jax_compat.dtype_named(record.dtype)),
            )
            for number, record in enumerate(records)
        ]

    def arrays(self) -> list[InitialArray]:
        return self._arrays

    def build(self, wanted: Sequence[Wanted]) -> None:
        """Reads leaves where they are wanted.

        Raises:
            CheckpointError: if the checkpoint is not there any more, or was replaced.
        """
        store = store_of_mesh(self.mesh)
        records = [self._records[request.result] for request in wanted]
        requests = [
            RemoteRequest(record=record, store=store, parts=_parts(record, request))
            for record, request in zip(records, wanted, strict=True)
        ]
        arrays = read_remote(self._checkpoint, requests)
        for request, array in zip(wanted, arrays, strict=True):
            self._arrays[request.result].put(array.parts)


def _parts(record: LeafRecord, request: Wanted) -> tuple[PlacedPart, ...]:
    shapes = [(size, *record.shape[1:]) for size in request.sizes] or [record.shape]
    return tuple(
        PlacedPart(type=ArrayType(dtype=record.dtype, shape=shape, spec=request.spec), actors=actors)
        for shape, actors in zip(shapes, request.actors, strict=True)
    )
