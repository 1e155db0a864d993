"""Restored state that no step has taken yet: each actor reads its own rows once a step says where they belong.

To a step it is state from `RemoteMesh.init` (see `initial_state`), which is read instead of computed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax

from jaxquard import _jax_compat
from jaxquard.ir.array_type import ArrayType
from jaxquard.pipeline.plan_init import Wanted
from jaxquard.runtime.checkpoint.find_store import store_of_mesh
from jaxquard.runtime.checkpoint.manifest import LeafRecord
from jaxquard.runtime.checkpoint.read_pieces import Checkpoint
from jaxquard.runtime.checkpoint.read_remote import PlacedPart, RemoteRequest, read_remote
from jaxquard.runtime.initial_state import InitialArray

if TYPE_CHECKING:
    from jaxquard.runtime.remote_mesh import RemoteMesh


class RestoredState:
    """Leaves of a checkpoint that are not read yet."""

    def __init__(self, *, checkpoint: Checkpoint, records: Sequence[LeafRecord], mesh: "RemoteMesh") -> None:
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
