"""`verify`: reads a checkpoint whole and compares it with its digests, without devices."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jaxquard.runtime.checkpoint.files.folders import SAVES, checkpoint_path
from jaxquard.runtime.checkpoint.files.leaf_records import LeafRecord
from jaxquard.runtime.checkpoint.files.manifest import Manifest
from jaxquard.runtime.checkpoint.files.orbax_files import require_orbax
from jaxquard.runtime.checkpoint.files.read_pieces import Checkpoint, check_pieces
from jaxquard.runtime.checkpoint.read_current import read_current


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReport:
    """A checkpoint that is whole.

    Attributes:
        digest: of its manifest, and so of all of it; None if an earlier jaxquard wrote it, without digests.
        fence: the number of the program that wrote it, among those that have owned its path.
    """

    path: Path
    digest: str | None
    fence: int
    leaves: tuple[LeafRecord, ...]

    @property
    def num_pieces(self) -> int:
        return sum(len(leaf.pieces) for leaf in self.leaves)

    @property
    def size_bytes(self) -> int:
        return sum(leaf.size_bytes for leaf in self.leaves)

    def __repr__(self) -> str:
        return (
            f"CheckpointReport({os.fspath(self.path)!r}, {len(self.leaves)} leaves, {self.num_pieces} pieces, "
            f"{self.size_bytes} bytes, digest={self.digest!r})"
        )


def describe_checkpoint(path: str | os.PathLike[str]) -> CheckpointReport:
    """Reads the manifest of a checkpoint, and nothing else.

    Raises:
        CheckpointError: if there is no checkpoint.
        DamagedCheckpointError: if the manifest is not as it was written.
    """
    target = checkpoint_path(path)
    return read_current(target, lambda _, manifest: _report(target, manifest))


def _report(path: Path, manifest: Manifest) -> CheckpointReport:
    return CheckpointReport(path=path, digest=manifest.digest, fence=manifest.fence, leaves=manifest.leaves)


def verify(
    path: str | os.PathLike[str], *, progress: Callable[[int, int, str], None] | None = None
) -> CheckpointReport:
    """Reads a checkpoint whole, and compares every piece with its digest. Needs no devices.

    `restore` compares what it reads, too; this finds damage in what it would not read, and before it is needed.

    Args:
        path: as given to `save`.
        progress: called with the number of bytes read, the number of all, and the path of a leaf.

    Returns:
        What the checkpoint holds. Its `digest` stands for all of it: note it to recognise the checkpoint later.

    Raises:
        CheckpointError: if there is no checkpoint, or it cannot be read.
        DamagedCheckpointError: if it is not as it was written; the message names the leaf.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jq.save(f"{folder}/checkpoint", {"step": 3, "params": jnp.arange(4.0)}).wait()
        ...     jq.verify(f"{folder}/checkpoint").size_bytes
        24
    """
    require_orbax()
    target = checkpoint_path(path)
    move = progress or (lambda *_: None)

    def check(folder: Path, manifest: Manifest) -> CheckpointReport:
        check_pieces(Checkpoint(path=folder, id=manifest.id), manifest.leaves, on_progress=move)
        return _report(target, manifest)

    with SAVES.taken(target):
        return read_current(target, check)
