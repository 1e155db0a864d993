"""Reads the checkpoint that is at a path now, while other programs may replace it."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from jaxquard.errors import CheckpointError
from jaxquard.runtime.checkpoint.files.folders import find_checkpoint
from jaxquard.runtime.checkpoint.files.manifest import Manifest, read_id
from jaxquard.runtime.checkpoint.files.read_pieces import ReplacedCheckpointError

_MAX_TRIES = 20
_Read = TypeVar("_Read")


def read_current(path: Path, read: Callable[[Path, Manifest], _Read]) -> _Read:
    """Reads the checkpoint of a path; the next one if another program replaces it meanwhile.

    Args:
        read: reads it, given its folder and its manifest.
    """
    for tries_left in reversed(range(_MAX_TRIES)):
        folder = find_checkpoint(path)
        with contextlib.suppress(FileNotFoundError):
            manifest = Manifest.read(folder)
            try:
                return read(folder, manifest)
            except ReplacedCheckpointError:
                if tries_left == 0 or read_id(find_checkpoint(path)) == manifest.id:
                    raise
        time.sleep(0.01)
    raise CheckpointError(f"{os.fspath(path)} is replaced again and again while it is read. Save less often.")
