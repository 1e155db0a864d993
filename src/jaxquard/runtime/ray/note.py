"""What a process is doing, kept where it can be read after the process has died: in a small file of shared memory."""

import mmap
import os
import tempfile
from pathlib import Path

_SIZE_BYTES = 256


class Note:
    """Written by the process; costs about as much as an assignment."""

    def __init__(self, directory: str | None = None) -> None:
        descriptor, path = tempfile.mkstemp(prefix="jaxquard-", suffix=".note", dir=directory)
        os.truncate(path, _SIZE_BYTES)
        self.path = path
        self.text = ""
        self._memory = mmap.mmap(descriptor, _SIZE_BYTES)
        os.close(descriptor)

    def write(self, text: str) -> None:
        self.text = text
        self._memory[:] = text.encode()[: _SIZE_BYTES - 1].ljust(_SIZE_BYTES, b"\0")

    def remove(self) -> None:
        Path(self.path).unlink(missing_ok=True)


def read_note(raw: bytes) -> str:
    """The text in the bytes of a note's file."""
    return raw.rstrip(b"\0").decode(errors="replace")
