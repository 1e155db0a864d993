"""The folders of a checkpoint while it is being written and replaced.

    runs/.last.saving-7-5f...    being written by owner 7; then it has a manifest, and is whole
    runs/last                    the checkpoint
    runs/.last.replaced-7-5f...  where two folders cannot be exchanged: the old one, between two renames
    runs/.last.fenced-...        of a save whose owner is dead; it is being deleted

A save exchanges `last` and the new folder in one step, and only then deletes the old one. File systems that cannot do
so (NFS) rename twice; then at every instant one of `last` and `.last.replaced-...` is whole, and `find_checkpoint`
looks for both. Only the owner of a path (`ownership`) touches any of these, and none of a later owner. It first renames
away what an earlier owner was writing, so that the last rename of a save that is not dead, but was silent, fails. A
second save of this program, or a restore, waits for the first (`SAVES`).
"""

import contextlib
import ctypes
import errno
import functools
import itertools
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxquard.errors import CheckpointError
from jaxquard.runtime.checkpoint.files.disk import path_error, read_error, sync
from jaxquard.runtime.checkpoint.files.manifest import MANIFEST_NAME, read_fence
from jaxquard.runtime.checkpoint.files.ownership.claims import CLAIMS, OwnedPath, OwnerClaim

_HIDDEN = re.compile(r"\.(.+)\.(saving|replaced|fenced)(?:-(?:(\d{1,18})-)?[^.]*)?", re.DOTALL)
_NUM_LOOKS = 20


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
    if "\0" in text:
        raise CheckpointError(f"path={text!r:.200} has a null character, which no name may have. Give another path.")
    absolute = Path(os.path.abspath(os.path.expanduser(text)))
    with _as_read_error(absolute):
        return absolute.resolve() if absolute.is_symlink() else absolute


def find_checkpoint(path: Path) -> Path:
    """Finds the folder that holds the checkpoint of this path.

    Raises:
        CheckpointError: if there is none, or it cannot be read.
    """
    with _as_read_error(path):
        return _find(path)


def _find(path: Path) -> Path:
    for look in range(_NUM_LOOKS):
        for folder in (path, *_hidden(path, "replaced")):
            if _is_checkpoint(folder):
                return folder
        # A save that is just replacing it may have been seen between its two renames.
        if look > 1 and not _hidden(path, "replaced"):
            break
        time.sleep(0.001 * look)
    if not path.exists():
        unfinished = " A save to it was started and never finished." if _hidden(path, "saving") else ""
        raise CheckpointError(f"there is no checkpoint at {os.fspath(path)}: the path does not exist.{unfinished}")
    raise CheckpointError(
        f"{os.fspath(path)} is not a whole checkpoint of jaxquard: it has no {MANIFEST_NAME}. Give a path that "
        "jq.save has written."
    )


def list_checkpoints(folder: Path) -> list[Path]:
    """Finds the checkpoints in a folder, in the order of their names; also one that a crash has left hidden."""
    found = set()
    with _as_read_error(folder):
        if folder.exists() and not folder.is_dir():
            raise CheckpointError(
                f"{os.fspath(folder)} should be a folder of checkpoints, but is a file. Give another."
            )
        for name in os.listdir(folder) if folder.is_dir() else ():
            hidden = _HIDDEN.fullmatch(name)
            is_named = hidden[2] == "replaced" if hidden else not name.startswith(".")
            if is_named and _is_checkpoint(folder / name):
                found.add(hidden[1] if hidden else name)
    return [folder / name for name in sorted(found)]


def claim_path(path: Path) -> OwnerClaim:
    """Makes this program the owner of a path.

    Raises:
        CheckpointOwnedError: if another program owns it and is alive.
        StaleOwnerError: if this program has been the owner, and another is now.
        CheckpointError: if the folder around it cannot be written.
    """
    if _HIDDEN.fullmatch(path.name):
        raise CheckpointError(
            f"cannot save to {os.fspath(path)}: names like this are those of saves under way, which are deleted. Give "
            "another name."
        )
    with _as_checkpoint_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{path.name}.owner-"
        return CLAIMS.take(
            OwnedPath(path=path, folder=path.parent, prefix=prefix, last_fence=functools.partial(read_fence, path))
        )


def claim_folder(folder: Path) -> OwnerClaim:
    """Makes this program the owner of a folder of checkpoints, and removes what saves of dead owners have left there.

    Raises:
        CheckpointOwnedError, StaleOwnerError, CheckpointError: as `claim_path` does.
    """
    with _as_checkpoint_error(folder):
        folder.mkdir(parents=True, exist_ok=True)

        def last_fence() -> int:
            return max(map(read_fence, list_checkpoints(folder)[-1:]), default=0)

        claim = CLAIMS.take(OwnedPath(path=folder, folder=folder, prefix=".owner-", last_fence=last_fence))
        for name in {found[1] for name in os.listdir(folder) if (found := _HIDDEN.fullmatch(name))}:
            _bring_back(folder / name)
            clean(folder / name, claim.fence)
        return claim


def make_unfinished(path: Path, id_: str, *, fence: int) -> Path:
    """Makes the folder to write into, and removes what saves of dead owners have left. The caller owns the path.

    Args:
        id_: of the checkpoint.
        fence: of the caller.

    Raises:
        CheckpointError: if the path is taken by something else, or the folder cannot be made.
    """
    with _as_checkpoint_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _bring_back(path)
        if not _is_free(path) and not _is_checkpoint(path):
            raise CheckpointError(
                f"{os.fspath(path)} exists and is no checkpoint. Save to another path, or remove it first."
            )
        clean(path, fence)
        folder = path.with_name(f".{path.name}.saving-{fence}-{id_}")
        folder.mkdir()
        return folder


def _bring_back(path: Path) -> None:
    """Renames a checkpoint back that a crash has left hidden between two renames."""
    for folder in _hidden(path, "replaced"):
        if _is_free(path) and _is_checkpoint(folder):
            with contextlib.suppress(FileNotFoundError):
                folder.rename(path)


def abandon(path: Path) -> None:
    """Renames a checkpoint, so that it is kept but not found as one of a step. The caller owns the path."""
    _bring_back(path)
    names = set(os.listdir(path.parent))
    suffixes = itertools.chain([".abandoned"], (f".abandoned-{number}" for number in itertools.count(2)))
    path.rename(next(path.with_name(path.name + suffix) for suffix in suffixes if path.name + suffix not in names))


def discard(path: Path, fence: int) -> None:
    """Deletes a checkpoint, which is gone at once. The caller owns the path, with this number."""
    with contextlib.suppress(FileNotFoundError):
        path.rename(path.with_name(f".{path.name}.fenced-{uuid.uuid4().hex}"))
    clean(path, fence)


def clean(path: Path, fence: int) -> None:
    """Removes the hidden folders of a path, but for those of later owners. A save that still writes finds its own gone.

    Args:
        fence: of the caller, who owns the path.
    """
    for folder in _hidden(path, "saving", "replaced", up_to=fence):
        fenced = path.with_name(f".{path.name}.fenced-{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):
            folder.rename(fenced)
    for folder in _hidden(path, "fenced"):
        remove(folder)


def commit(folder: Path, path: Path) -> None:
    """Replaces the checkpoint at `path` by a folder that is whole and durable.

    Raises:
        FileNotFoundError: if another owner has renamed the folder away. The checkpoint at the path is as it was.
    """
    if not _is_checkpoint(path):
        folder.rename(path)
        sync(path.parent)
    elif _exchange(folder, path):
        sync(path.parent)
        remove(folder)
    else:
        _rename_twice(folder, path)


def _rename_twice(folder: Path, path: Path) -> None:
    old = folder.with_name(folder.name.replace(".saving-", ".replaced-"))
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(folder))
    path.rename(old)
    try:
        folder.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            old.rename(path)
        raise
    sync(path.parent)
    remove(old)


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@functools.cache
def _renameat2() -> Any:
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges the names of two folders at once; returns False where this is not possible."""
    rename = _renameat2()
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), os.fspath(one))


def remove(folder: Path) -> None:
    """Deletes a folder, the manifest first: half deleted it must not pass for a checkpoint."""
    with contextlib.suppress(OSError):
        (folder / MANIFEST_NAME).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _hidden(path: Path, *kinds: str, up_to: int | None = None) -> list[Path]:
    """Finds the folders of a path that are no checkpoint of it, or not any more; only of owners up to this number."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(path.parent):
            match = _HIDDEN.fullmatch(name)
            if match and match[1] == path.name and match[2] in kinds and (up_to is None or int(match[3] or 0) <= up_to):
                found.append(path.with_name(name))
    return found


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
        raise path_error(path, error) from error


@contextlib.contextmanager
def _as_read_error(path: Path) -> Iterator[None]:
    """Turns an error of the file system into a CheckpointError; a folder that cannot be read is not an empty one."""
    try:
        yield
    except OSError as error:
        raise read_error(path, error) from error
