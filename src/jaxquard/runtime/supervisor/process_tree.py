"""Finds the processes that a program has started, also those that left its session, and ends them all.

The supervisor is a subreaper (`prctl`): a process whose parent dies becomes its child, as it would become init's. So
all that a program started, daemons included, is always below the supervisor, and `/proc` lists it. A process is named
by its id and its start time: an id that the kernel has given to another process since is left alone.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_S = 0.02
_KILL_LIMIT_S = 30.0
"""A process in the kernel, waiting for a disk that is gone, cannot be ended; nobody waits longer for it."""
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process: the id, and the time at which it started, in ticks of the kernel."""

    pid: int
    start_ticks: int


def adopt_orphans() -> None:
    """Makes this process the parent of every orphan below it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def bind_to_parent(parent: int, number: int) -> None:
    """Has the kernel send a signal to this process when its parent ends; for the moment between fork and exec."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # It ended before.
        os._exit(128 + number)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def list_descendants(root: int) -> tuple[ProcessId, ...]:
    """Lists all living processes below one."""
    parents = {found: parent for entry in _entries() if (stat := _read_stat(entry)) for found, parent in [stat]}
    below, is_growing = {root}, True
    while is_growing:
        more = {found.pid for found, parent in parents.items() if parent in below} - below
        below |= more
        is_growing = bool(more)
    return tuple(found for found in parents if found.pid in below and found.pid != root)


def list_marked(name: str, value: str) -> tuple[ProcessId, ...]:
    """Lists all living processes of this user whose environment had a variable of this value when they started."""
    mark = f"{name}={value}".encode()
    found = []
    for entry in _entries():
        with contextlib.suppress(OSError):
            if mark in (_PROC / entry / "environ").read_bytes().split(b"\0") and (stat := _read_stat(entry)):
                found.append(stat[0])
    return tuple(found)


def _entries() -> list[str]:
    return [entry for entry in os.listdir(_PROC) if entry.isdecimal()]


def _read_stat(entry: str) -> tuple[ProcessId, int] | None:
    """Reads a process and the id of its parent; None if it has ended, also if nobody has asked for its status yet."""
    try:
        # The name stands in brackets and may have anything in it.
        fields = (_PROC / entry / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return ProcessId(pid=int(entry), start_ticks=int(fields[19])), int(fields[1])


def is_living(process: ProcessId) -> bool:
    """Says whether a process still runs."""
    stat = _read_stat(str(process.pid))
    return stat is not None and stat[0] == process


def living_process(pid: int) -> ProcessId | None:
    """Returns the living process with an id."""
    stat = _read_stat(str(pid))
    return None if stat is None else stat[0]


def send_signal(process: ProcessId, number: int) -> None:
    """Sends a signal to a process, unless it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError), _held(process.pid) as descriptor:
        # A descriptor holds whichever process has the id now, so that the signal goes to no later one.
        if not is_living(process):
            return
        if descriptor is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)


@contextlib.contextmanager
def _held(pid: int) -> Iterator[int | None]:
    """Opens a process; None where the kernel is too old for that, or a container forbids it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def end_all(
    find: Callable[[], Sequence[ProcessId]], *, grace_s: float, reap: Callable[[], object] = lambda: None
) -> tuple[ProcessId, ...]:
    """Ends processes, and those that they start meanwhile: with SIGTERM, and after a grace time with SIGKILL.

    Args:
        find: lists them.
        grace_s: the time that they have to end by themselves.
        reap: asks for the status of children that have ended.

    Returns:
        Those that even SIGKILL could not end within 30 s.
    """
    if grace_s > 0:
        for process in find():
            send_signal(process, signal.SIGTERM)
        end_s = time.monotonic() + grace_s
        while (reap(), find())[1] and time.monotonic() < end_s:
            time.sleep(_POLL_S)
    end_s = time.monotonic() + _KILL_LIMIT_S
    while left := find():
        if time.monotonic() > end_s:
            return tuple(left)
        for process in left:
            send_signal(process, signal.SIGKILL)
        time.sleep(_POLL_S)
        reap()
    reap()
    return ()


def reap_children() -> dict[int, int]:
    """Asks for the status of all children that have ended: exit codes by process id, -n for a signal n."""
    found = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return found
