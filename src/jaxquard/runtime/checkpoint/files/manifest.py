"""`jaxquard.json`: the leaves of a checkpoint, and the pieces of each.

    {"schema": 2, "id": "5f...", "fence": 7, "leaves": [
        {"path": "['params']['w']", "dtype": "float32", "shape": [8, 4], "pieces": [
            {"folder": "actors", "key": "p0", "starts": [0, 0], "shape": [4, 4], "digest": "0a..."}, ...]}, ...],
    "digest": "91..."}

The pieces of a leaf are disjoint and cover it. A piece is one array in an orbax checkpoint, the folder of which lies
beside this file. Of random keys (dtype `key<fry>`) the data are saved, so their pieces have a dim more than the leaf
(`DataType`). The file is written last: a folder without it is no checkpoint. `fence` numbers the programs that have
owned the path (`owner`). Digests are those of `digests`; schema 1 had none. The file may come from a stranger: reading
goes through `read_leaves`.
"""

import dataclasses
import functools
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxquard.errors import CheckpointError, CheckpointWarning, DamagedCheckpointError
from jaxquard.ir.codec import DataError
from jaxquard.ir.parse_json import parse_json
from jaxquard.runtime.checkpoint.files.digests import content_digest
from jaxquard.runtime.checkpoint.files.disk import write_durably
from jaxquard.runtime.checkpoint.files.leaf_records import LeafRecord, read_leaves

MANIFEST_NAME = "jaxquard.json"
_SCHEMA = 2
_SCHEMA_WITHOUT_DIGESTS = 1
_MAX_MANIFEST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The leaves of a checkpoint, and an id that no other checkpoint has.

    Attributes:
        fence: numbers the programs that have owned the path; 0 in a checkpoint of schema 1.
        digest: of all of the above; None in a checkpoint of schema 1, and before it is written.
    """

    id: str
    leaves: tuple[LeafRecord, ...]
    fence: int = 0
    digest: str | None = None

    def write(self, folder: Path) -> None:
        """Writes the file so that it is whole or not there, also after a power cut."""
        write_durably(folder / MANIFEST_NAME, manifest_text(self).encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads what `write` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            CheckpointError: if it is not ours, or of a newer version.
            DamagedCheckpointError: if it is not as it was written.
        """
        content = _load(folder)
        try:
            has_digests = content["schema"] > _SCHEMA_WITHOUT_DIGESTS
            leaves = read_leaves(content.get("leaves"), has_digests=has_digests)
        except (DataError, RecursionError) as error:
            raise _damaged(folder, error) from error
        if not has_digests:
            _warn_without_digests(folder)
        return cls(id=content["id"], leaves=leaves, fence=content.get("fence", 0), digest=content.get("digest"))


def manifest_text(manifest: Manifest) -> str:
    """Returns the JSON text of a manifest, a leaf a line."""
    leaves = [
        {
            "path": leaf.path,
            "dtype": leaf.dtype,
            "shape": leaf.shape,
            "pieces": [
                {"folder": p.folder, "key": p.key, **dataclasses.asdict(p.region), "digest": p.digest}
                for p in leaf.pieces
            ],
        }
        for leaf in manifest.leaves
    ]
    head = {"schema": _SCHEMA, "id": manifest.id, "fence": manifest.fence}
    digest = content_digest({**head, "leaves": leaves})
    lines = ",\n".join(map(json.dumps, leaves))
    return f'{json.dumps(head)[:-1]}, "leaves": [\n{lines}\n],\n"digest": "{digest}"}}\n'


def read_id(folder: Path) -> str | None:
    """Reads the id of the checkpoint that a folder holds now; None if it holds none."""
    try:
        return _load(folder)["id"]
    except (OSError, CheckpointError):
        return None


def read_fence(folder: Path) -> int:
    """Reads the number of the program that wrote the checkpoint in a folder; 0 if there is none."""
    try:
        return _load(folder).get("fence", 0)
    except (OSError, CheckpointError):
        return 0


def _load(folder: Path) -> dict[str, Any]:
    """Reads the file, and checks all but its leaves."""
    with (folder / MANIFEST_NAME).open("rb") as file:
        data = file.read(_MAX_MANIFEST_BYTES + 1)
    try:
        if len(data) > _MAX_MANIFEST_BYTES:
            raise DataError(f"it is larger than {_MAX_MANIFEST_BYTES} bytes")
        content = parse_json(data)
        _check_head(content)
    except (DataError, RecursionError) as error:
        raise _damaged(folder, error) from error
    if content["schema"] > _SCHEMA:
        raise CheckpointError(
            f"{os.fspath(folder)} has schema {content['schema']} of {MANIFEST_NAME}, but this jaxquard knows "
            f"{_SCHEMA}. Update jaxquard."
        )
    if content["schema"] == _SCHEMA_WITHOUT_DIGESTS and {"digest", "fence"} & content.keys():
        raise _damaged(folder, f"it has a digest, but the schema that has none ({_SCHEMA_WITHOUT_DIGESTS})")
    if content["schema"] > _SCHEMA_WITHOUT_DIGESTS and content.get("digest") != (found := content_digest(content)):
        raise _damaged(folder, f"its digest is {found}, but it was written with {content.get('digest')!r:.40}")
    return content


def _check_head(content: Any) -> None:
    if not isinstance(content, dict) or not _is_natural(content.get("schema"), minimum=1):
        raise DataError("it has no schema")
    if not isinstance(content.get("id"), str):
        raise DataError("it has no id")
    if not _is_natural(content.get("fence", 0)):
        raise DataError(f"its fence should be a whole number, found {content['fence']!r:.80}")


def _is_natural(value: Any, minimum: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _damaged(folder: Path, why: object) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"{MANIFEST_NAME} in {os.fspath(folder)} is damaged: {why}. Restore another checkpoint."
    )


@functools.cache
def _warn_without_digests(folder: Path) -> None:
    """Warns once for each folder."""
    warnings.warn(
        f"checkpoint {os.fspath(folder)} has no digests, because an earlier jaxquard wrote it: damaged bytes in it go "
        "unnoticed. Save it again.",
        CheckpointWarning,
        stacklevel=5,
    )
