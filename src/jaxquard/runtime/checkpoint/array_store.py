"""What an engine does for checkpoints: its actors write the arrays they hold, and read those they shall hold.

The controller decides what is written where and keeps the manifest; the bytes go between the actors and the disk.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from jaxquard.runtime.checkpoint.read_arrays import RowsWanted
from jaxquard.runtime.checkpoint.read_pieces import Checkpoint
from jaxquard.runtime.checkpoint.write_pieces import PieceTable
from jaxquard.runtime.handle import Handle


class ArrayWriting(Protocol):
    """Arrays of all actors, which are in host memory and on their way to disk."""

    @property
    def pieces(self) -> Mapping[int, PieceTable]:
        """For each actor and name, the pieces that its processes write; together they cover the array."""
        ...

    def wait(self) -> None:
        """Waits until all are on disk; raises the first error, when no process writes any more."""
        ...


@runtime_checkable
class ArrayStore(Protocol):
    """The actors of one engine. It does not keep the engine alive: arrays may outlive it."""

    def start_write(self, folder: Path, prefix: str, arrays: Mapping[int, Mapping[str, Handle]]) -> ArrayWriting:
        """Has every actor write some of its arrays (see `write_pieces`).

        Returns when all are in host memory, so that the next step may take them.

        Args:
            folder: of the unfinished checkpoint.
            prefix: the names of the orbax checkpoints in it begin so.
            arrays: for each actor, what it shall write, under names.

        Raises:
            DeletedArrayError, TaskFailed: for an array that is not there; then nothing is being written.
        """
        ...

    def read(
        self, checkpoint: Checkpoint, arrays: Mapping[int, Mapping[str, RowsWanted]]
    ) -> Mapping[int, Mapping[str, Handle]]:
        """Has every actor read some arrays (see `read_pieces` and `rows_job`), and returns handles of them."""
        ...
