"""The actors of this process read and write: they are one process, so they share one orbax checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jax.sharding import Mesh

from jaxquard.runtime.cell import Cell
from jaxquard.runtime.checkpoint.array_store import ArrayWriting
from jaxquard.runtime.checkpoint.read_arrays import RowsWanted, rows_job
from jaxquard.runtime.checkpoint.read_pieces import Checkpoint, read_jobs
from jaxquard.runtime.checkpoint.write_pieces import PieceTable, PieceWriting, write_pieces
from jaxquard.runtime.handle import Handle
from jaxquard.runtime.transfer import sharding_on


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    pieces: Mapping[int, PieceTable]
    writing: PieceWriting

    def wait(self) -> None:
        self.writing.wait()


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
            cells[actor][name] = Cell(actor=actor, buffer=array, owner=self)
        return cells
