"""Bytes that are still there after a power cut: files are synced, and the folders that name them."""

import os
from pathlib import Path


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
