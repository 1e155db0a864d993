"""The folders of a checkpoint while it is being written and replaced.

    runs/.last.saving-5f...   being written; then it has a manifest, and is whole
    runs/.last.replaced       the old checkpoint, for the moment between the two renames
    runs/last                 the checkpoint

A save renames `last` to `.last.replaced`, then the new folder to `last`, and only then deletes the old one. So at every
instant one of `last` and `.last.replaced` is whole, and `find_checkpoint` looks for both. The next save to the same
path removes what a crashed one left behind. A second save, or a restore, waits for the first (`SAVES`).
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from jaxquard.errors import CheckpointError
from jaxquard.runtime.checkpoint.files.disk import sync
from jaxquard.runtime.checkpoint.files.manifest import MANIFEST_NAME


class PathsInProgress:
    """The paths that this process is saving to."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken: set[str] = set()

    def take(self, path: Path) -> None:
        """Waits until the path is free, and takes it."""
        key = os.path.realpath(path)
        with self._changed:
            self._changed.wait_for(lambda: key not in self._taken)
            self._taken.add(key)

    def free(self, path: Path) -> None:
        with self._changed:
            self._taken.discard(os.path.realpath(path))
            self._changed.notify_all()

    @contextlib.contextmanager
    def taken(self, path: Path) -> Iterator[None]:
        self.take(path)
        try:
            yield
        finally:
            self.free(path)


# A program may save from several places, which must not write to one path at the same time.
SAVES = PathsInProgress()


def checkpoint_path(path: str | os.PathLike[str]) -> Path:
    """Makes the user's path absolute; follows a symbolic link, as it cannot be replaced by a folder."""
    text = os.fspath(path)
    if "://" in text:
        raise CheckpointError(f"path={text!r} must be a folder of a file system that all hosts have mounted.")
    absolute = Path(os.path.abspath(os.path.expanduser(text)))
    return absolute.resolve() if absolute.is_symlink() else absolute


def find_checkpoint(path: Path) -> Path:
    """Finds the folder that holds the checkpoint of this path.

    Raises:
        CheckpointError: if there is none.
    """
    # A save that is just replacing it may have been seen between its two renames.
    for folder in (path, _replaced(path), path):
        if _is_checkpoint(folder):
            return folder
    if not path.exists():
        unfinished = " A save to it was started and never finished." if any(_unfinished(path)) else ""
        raise CheckpointError(f"there is no checkpoint at {os.fspath(path)}: the path does not exist.{unfinished}")
    raise CheckpointError(
        f"{os.fspath(path)} is not a whole checkpoint of jaxquard: it has no {MANIFEST_NAME}. Give a path that "
        "jq.save has written."
    )


def make_unfinished(path: Path, id_: str) -> Path:
    """Makes the folder to write into, and removes what crashed saves have left.

    Raises:
        CheckpointError: if the path is taken by something else, or the folder cannot be made.
    """
    with _as_checkpoint_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if _is_free(path) and _is_checkpoint(_replaced(path)):
            _replaced(path).rename(path)
        if not _is_free(path) and not _is_checkpoint(path):
            raise CheckpointError(
                f"{os.fspath(path)} exists and is no checkpoint. Save to another path, or remove it first."
            )
        for leftover in (*_unfinished(path), _replaced(path)):
            remove(leftover)
        folder = path.with_name(f".{path.name}.saving-{id_}")
        folder.mkdir()
        return folder


def commit(folder: Path, path: Path) -> None:
    """Replaces the checkpoint at `path` by a folder that is whole and durable."""
    old = _replaced(path)
    if _is_checkpoint(path):
        remove(old)
        path.rename(old)
    folder.rename(path)
    sync(path.parent)
    remove(old)


def remove(folder: Path) -> None:
    """Deletes a folder, the manifest first: half deleted it must not pass for a checkpoint."""
    with contextlib.suppress(OSError):
        (folder / MANIFEST_NAME).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _replaced(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def _unfinished(path: Path) -> Iterator[Path]:
    prefix = f".{path.name}.saving-"
    if path.parent.is_dir():
        yield from [folder for folder in path.parent.iterdir() if folder.name.startswith(prefix)]


def _is_checkpoint(folder: Path) -> bool:
    return (folder / MANIFEST_NAME).is_file()


def _is_free(path: Path) -> bool:
    """Returns True if nothing is there, or an empty folder, which a rename replaces."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


@contextlib.contextmanager
def _as_checkpoint_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot save to {os.fspath(path)}: {error.strerror}.") from error
