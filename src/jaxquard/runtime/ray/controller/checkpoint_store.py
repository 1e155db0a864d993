"""Saves and restores arrays that other processes hold: each process writes and reads its own pieces.

A save takes its turn among the steps: it sees the state as it was when `jq.save` was called, and the steps after it
may take the buffers.
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from jaxquard.runtime.checkpoint.array_store import ArrayWriting
from jaxquard.runtime.checkpoint.files.digests import Checksums
from jaxquard.runtime.checkpoint.files.read_arrays import RowsWanted
from jaxquard.runtime.checkpoint.files.read_pieces import Checkpoint
from jaxquard.runtime.checkpoint.files.write_pieces import PieceTable
from jaxquard.runtime.engine import closed_error
from jaxquard.runtime.ray.controller.ray_cell import RayCell
from jaxquard.runtime.ray.controller.worker_group import GivenUp, WorkerGroup, WorkerProcess
from jaxquard.runtime.remote_array import Handle


class _Engine(Protocol):
    group: WorkerGroup

    def call_in_turn(self, actor: int, method: str, *args: Any) -> list[Any]: ...

    def new_cell(self, actor: int) -> RayCell: ...


class RayStore:
    """An `ArrayStore` for actors that are processes; also what identifies their engine."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = weakref.ref(engine)

    def start_write(self, folder: Path, prefix: str, arrays: Mapping[int, Mapping[str, Handle]]) -> ArrayWriting:
        """See `ArrayStore.start_write`."""
        engine = self._find_engine()
        for held in arrays.values():
            for cell in held.values():
                _check(cell)
        calls: list[tuple[WorkerProcess, Any]] = []
        for actor, held in arrays.items():
            numbers = {name: cell.number for name, cell in held.items() if isinstance(cell, RayCell)}
            references = engine.call_in_turn(actor, "save", str(folder), f"{prefix}actor{actor}", numbers)
            calls += zip(engine.group.workers[actor], references, strict=True)
        saves = tuple(worker.handle.wait_saved(str(folder)) for worker, _ in calls)
        engine.group.saves.update(saves)
        writing = _Writing(pieces={actor: {} for actor in arrays}, engine=engine, saves=saves)
        try:
            tables = engine.group.gather([reference for _, reference in calls])
        except BaseException as error:
            writing.wait_ended({})
            if isinstance(error, KeyError | GivenUp):
                _raise_why_missing(arrays)
            raise
        for (worker, _), table in zip(calls, tables, strict=True):
            pieces = writing.pieces[worker.actor]
            for name, found in table.items():
                pieces[name] = (*pieces.get(name, ()), *found)
        return writing

    def read(
        self, checkpoint: Checkpoint, arrays: Mapping[int, Mapping[str, RowsWanted]]
    ) -> Mapping[int, Mapping[str, Handle]]:
        """See `ArrayStore.read`."""
        engine = self._find_engine()
        cells: dict[int, dict[str, Handle]] = {}
        references = []
        for actor, wanted in arrays.items():
            fresh = {name: engine.new_cell(actor) for name in wanted}
            numbered = {fresh[name].number: rows for name, rows in wanted.items()}
            references += engine.call_in_turn(actor, "restore", checkpoint, numbered)
            cells[actor] = dict(fresh)
        engine.group.gather(references)
        return cells

    def _find_engine(self) -> _Engine:
        engine = self._engine()
        if engine is None:
            raise closed_error()
        return engine


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """A save under way. It keeps the engine alive: its processes must live until all is on disk."""

    pieces: dict[int, PieceTable]
    engine: _Engine
    saves: Sequence[Any]

    def wait(self) -> Checksums:
        """Waits until no process writes any more; an actor that is lost meanwhile is an error."""
        checksums: Checksums = {}
        errors = self.wait_ended(checksums)
        if errors:
            raise errors[0]
        return checksums

    def wait_ended(self, checksums: Checksums) -> list[Exception]:
        """Waits, adds the checksums that the processes have computed, and returns what went wrong."""
        errors: list[Exception] = []
        for reference in self.saves:
            try:
                checksums |= self.engine.group.get(reference)
            except Exception as error:
                errors.append(error)
        self.engine.group.saves.difference_update(self.saves)
        return errors


def _check(cell: Handle) -> None:
    cell.check_not_taken()
    if isinstance(cell, RayCell):
        cell.check_not_lost()
        if cell.step is not None and cell.step.error is not None:
            cell.step.raise_error()


def _raise_why_missing(arrays: Mapping[int, Mapping[str, Handle]]) -> None:
    """Raises the error of the step that should have filled a missing cell."""
    for held in arrays.values():
        for cell in held.values():
            cell.wait_ready()
