"""Durable writes, and errors of files in one line.

Files are synced, and the folders that name them, so that they are still there after a power cut. The error of a full
disk says whose disk it is, how much is needed and how much is free.
"""

import errno
import os
import shutil
import socket
from pathlib import Path

from jaxquard.errors import CheckpointError, JaxquardError
from jaxquard.runtime.step_state import error_lines


def write_durably(path: Path, content: bytes) -> None:
    """Writes a file that appears whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file's bytes, or a folder's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Syncs everything in a folder."""
    for parent, _, names in os.walk(folder):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))


_FULL = {errno.ENOSPC, errno.EDQUOT}


def check_space(folder: Path, needed_bytes: int) -> None:
    """Raises if the disk of a folder has less free than is needed."""
    if _free_bytes(folder) < needed_bytes:
        raise disk_full(folder, needed_bytes)


def disk_full(folder: Path, needed_bytes: int) -> CheckpointError:
    """Makes the error of a full disk, with what is free now."""
    return CheckpointError(
        f"the disk is full on {socket.gethostname()}: {os.fspath(folder.parent)} has {human(_free_bytes(folder))} "
        f"free, and saving takes {human(needed_bytes)} there. Nothing was replaced: the last checkpoint is whole. Make "
        "room, or save elsewhere."
    )


def write_error(error: Exception, folder: Path, needed_bytes: int) -> JaxquardError:
    """Turns an error of writing into a folder into a CheckpointError."""
    if isinstance(error, JaxquardError):
        return error
    if _is_full(error):
        return disk_full(folder, needed_bytes)
    if not folder.is_dir():
        return CheckpointError(
            f"{os.fspath(folder)} was removed while it was being written. Do two processes save to the same path? "
            "Give each its own."
        )
    return CheckpointError(
        f"saving into {os.fspath(folder.parent)} failed on {socket.gethostname()}: {one_line(error)}. "
        "Nothing was replaced: the last checkpoint is whole."
    )


_REASONS = {
    errno.EACCES: "this user may not write there",
    errno.EPERM: "this user may not write there",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EEXIST: "a part of the path is a file, not a folder",
    errno.ENAMETOOLONG: "the name is too long for the file system",
    errno.ELOOP: "the path has a circle of symbolic links",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota of this user is spent",
    errno.ESTALE: "the file server has lost the folder",
    errno.EIO: "the disk has an error",
}


_REASONS_TO_SAVE = {errno.ENOENT: "no folder can be made there, as in a file system of the kernel such as /proc"}
_REASONS_TO_READ = {errno.EACCES: "this user may not read there", errno.EPERM: "this user may not read there"}


def path_error(path: Path, error: OSError) -> CheckpointError:
    """Makes the error of a path that cannot be written, with the reason."""
    reason = _reason(error, _REASONS | _REASONS_TO_SAVE)
    return CheckpointError(f"cannot save to {os.fspath(path)}: {reason}. Save to a disk that can be written.")


def read_error(path: Path, error: OSError) -> CheckpointError:
    """Makes the error of a path that cannot be read, with the reason."""
    reason = _reason(error, _REASONS | _REASONS_TO_READ)
    return CheckpointError(f"cannot read {os.fspath(path)}: {reason}. Give a path that can be read.")


def _reason(error: OSError, reasons: dict[int, str]) -> str:
    return f"{reasons.get(error.errno or 0, error.strerror)} ({error.strerror})"


def human(size_bytes: int) -> str:
    """Formats a number of bytes: `1.5 GB`."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _free_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _is_full(error: BaseException | None) -> bool:
    """Returns True if an error, or one that caused it, is of a full disk; TensorStore has only the message."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        if any(os.strerror(number) in str(error) for number in _FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def one_line(error: Exception) -> str:
    """Returns the first line of an error, without the spec that TensorStore adds."""
    return error_lines(error)[0].split(" [tensorstore_spec=")[0].rstrip(".")
