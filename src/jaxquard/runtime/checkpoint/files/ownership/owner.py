"""A program that owns a path, as its claim file describes it, and whether it is alive.

On the same host, and in the same container, the process number and the start time say so. Elsewhere only its heartbeat
does: the owner touches its file every 10 s, and after 60 s without it counts as dead. Both times are those of the file
server, so clocks of hosts do not matter.
"""

import dataclasses
import functools
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from jaxquard.ir.codec import DataError, from_data
from jaxquard.ir.parse_json import parse_json

HEARTBEAT_S = 10.0
LEASE_S = 60.0
_MAX_FILE_BYTES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process.

    Attributes:
        fence: its number among the owners of the path; a later owner has a larger one.
        token: no other process has it.
        system: the running kernel and the space of process numbers, which a container may have for itself.
        start: when the process started, in ticks since the kernel did: a process number may be used again.
    """

    fence: int
    token: str
    host: str
    system: str
    pid: int
    start: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def to_json(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()


def this_process(fence: int, token: str) -> Owner:
    """Describes this process as an owner."""
    pid = os.getpid()
    return Owner(fence=fence, token=token, host=socket.gethostname(), system=_system(), pid=pid, start=_start_of(pid))


def read_owner(file: Path) -> Owner | None:
    """Reads a claim file; None if it is gone, or not written yet."""
    try:
        with file.open("rb") as opened:
            return from_data(Owner, parse_json(opened.read(_MAX_FILE_BYTES)), where="owner")
    except (OSError, DataError):
        return None


def is_alive(owner: Owner | None, file: Path, probe: Path) -> bool:
    """Returns True if the owner that a claim file names is alive.

    For an owner on another host this may wait up to `LEASE_S`, until its heartbeat comes or is overdue.

    Args:
        probe: a file in the same folder that may be touched, to see the time of the file server.
    """
    if owner is not None and owner.system == _system():
        return _is_running(owner)
    first_s = _modified_s(file)
    while True:
        last_s = _modified_s(file)
        if first_s is None or last_s is None:
            return False  # It has given the path up.
        if last_s > first_s:
            return True
        probe.touch()
        if (_modified_s(probe) or last_s) - last_s > LEASE_S:
            return False
        time.sleep(min(1.0, HEARTBEAT_S / 4))


def _modified_s(file: Path) -> float | None:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return None


def _is_running(owner: Owner) -> bool:
    start = _start_of(owner.pid)
    return start == owner.start if start else not Path(f"/proc/{owner.pid}").exists() and _is_hidden(owner.pid)


def _is_hidden(pid: int) -> bool:
    """Returns True if a process runs that this user may not see: /proc may show a user no processes of others."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False  # A process of this user is shown: it has just ended.


def _start_of(pid: int) -> int:
    """Returns the start time of a process; 0 if it has ended, also if nobody has noticed yet (a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


@functools.cache
def _system() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
