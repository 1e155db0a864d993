"""Which paths are being saved to: a second save, or a restore, waits for the first."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path


class PathsInProgress:
    """Paths in use, of this process."""

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
