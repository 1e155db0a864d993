"""A process between another one and its stderr: `python -I -S filter_stderr.py`, with that process's output as stdin.

It passes everything on at once, but for the lines in which XLA's partitioner warns of a bad sharding: these go to its
stdout, and so does a line that begins with a null byte, by which the other process learns how far it has come. Being a
process of its own, it also passes on what the other one writes as it crashes.
"""

import os
import re
import select

_CAUGHT = re.compile(rb"[WE]\d{4} [^\n]*Involuntary full rematerialization[^\n]*\n|\0[^\n]*\n")
# The end of what was read may be the beginning of such a line. It is held back until more comes, or nothing does.
_BEGUN = re.compile(rb"(?:[WE]\d{0,3}|[WE]\d{4}(?: [^\n]*)?|\0[^\n]*)\Z")
_PATIENCE_S = 0.2


def main() -> None:
    """Passes on until the other end closes."""
    held = b""
    while True:
        if held and not select.select([0], [], [], _PATIENCE_S)[0]:
            _write(2, held)
            held = b""
        read = os.read(0, 65536)
        text = held + read
        start = 0
        for caught in _CAUGHT.finditer(text):
            _write(2, text[start : caught.start()])
            _write(1, caught.group())
            start = caught.end()
        text = text[start:]
        begun = _BEGUN.search(text) if read else None
        held = b"" if begun is None else begun.group()
        _write(2, text[: len(text) - len(held)])
        if not read:
            return


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main()
