"""`jaxquard.json`: the leaves of a checkpoint, and the pieces of each.

    {"schema": 1, "id": "5f...", "leaves": [
        {"path": "['params']['w']", "dtype": "float32", "shape": [8, 4], "pieces": [
            {"folder": "actors", "key": "p0", "starts": [0, 0], "shape": [4, 4]}, ...]}, ...]}

The pieces of a leaf are disjoint and cover it. A piece is one array in an orbax checkpoint, the folder of which lies
beside this file. Of random keys (dtype `key<fry>`) the data are saved, so their pieces have a dim more than the leaf
(`DataType`). The file is written last: a folder without it is no checkpoint.
"""

import dataclasses
import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxquard import _jax_compat
from jaxquard.errors import CheckpointError
from jaxquard.runtime.checkpoint.files.disk import write_durably
from jaxquard.runtime.checkpoint.files.regions import Region
from jaxquard.runtime.transfer import is_key

MANIFEST_NAME = "jaxquard.json"
_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One array on disk, and which box of its leaf it is."""

    folder: str
    key: str
    region: Region

    def shifted(self, rows: int) -> "Piece":
        return dataclasses.replace(self, region=self.region.shifted(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafRecord:
    """One leaf of the state; `path` is its tree path, as `jax.tree_util.keystr` writes it."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def type_text(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The leaves of a checkpoint, and an id that no other checkpoint has."""

    id: str
    leaves: tuple[LeafRecord, ...]

    def write(self, folder: Path) -> None:
        """Writes the file so that it is whole or not there, also after a power cut."""
        leaves = [
            {
                "path": leaf.path,
                "dtype": leaf.dtype,
                "shape": leaf.shape,
                "pieces": [{"folder": p.folder, "key": p.key, **dataclasses.asdict(p.region)} for p in leaf.pieces],
            }
            for leaf in self.leaves
        ]
        lines = ",\n".join(map(json.dumps, leaves))
        text = f'{{"schema": {_SCHEMA}, "id": "{self.id}", "leaves": [\n{lines}\n]}}\n'
        write_durably(folder / MANIFEST_NAME, text.encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads what `write` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            CheckpointError: if it is not ours, or of a newer version.
        """
        content = _load(folder)
        try:
            return cls(id=content["id"], leaves=tuple(map(_leaf, content["leaves"])))
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(folder, error) from error


def read_id(folder: Path) -> str | None:
    """Reads the id of the checkpoint that a folder holds now; None if it holds none."""
    try:
        return _load(folder)["id"]
    except (OSError, KeyError, CheckpointError):
        return None


def _load(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / MANIFEST_NAME).read_bytes())
    except ValueError as error:
        raise _damaged(folder, error) from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, int):
        raise _damaged(folder, "it has no schema")
    if schema > _SCHEMA:
        raise CheckpointError(
            f"{os.fspath(folder)} has schema {schema} of {MANIFEST_NAME}, but this jaxquard knows {_SCHEMA}. "
            "Update jaxquard."
        )
    return content


def _leaf(content: dict[str, Any]) -> LeafRecord:
    return LeafRecord(
        path=content["path"],
        dtype=content["dtype"],
        shape=tuple(content["shape"]),
        pieces=tuple(
            Piece(
                folder=piece["folder"],
                key=piece["key"],
                region=Region(starts=tuple(piece["starts"]), shape=tuple(piece["shape"])),
            )
            for piece in content["pieces"]
        ),
    )


def _damaged(folder: Path, why: object) -> CheckpointError:
    return CheckpointError(f"{MANIFEST_NAME} in {os.fspath(folder)} is damaged: {why}. Restore another checkpoint.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataType:
    """A dtype of NumPy, and the dims that data has beyond those of the leaf."""

    dtype: np.dtype
    tail: tuple[int, ...] = ()

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize


def data_type(leaf: LeafRecord) -> DataType:
    """Returns the type in which a leaf is on disk: its own, or for random keys that of their data."""
    return data_type_of(leaf.dtype)


@functools.cache
def data_type_of(dtype: str) -> DataType:
    """Returns the type on disk for the name of a dtype."""
    if not is_key(dtype):
        return DataType(dtype=_jax_compat.dtype_named(dtype))
    make = functools.partial(jax.random.key, 0, impl=_jax_compat.key_implementation(dtype))
    data = jax.eval_shape(lambda: jax.random.key_data(make()))
    return DataType(dtype=np.dtype(data.dtype), tail=data.shape)
