"""Watches the servers of Ray, and the client process that is connected to them: when one is gone, so are all actors.

A process of this host is dead when the kernel says so; one that is stopped for long counts as dead too. A control
server on another host is asked for a connection; it may be down for a while, as some clusters start theirs again.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxquard.runtime.ray.client.addresses import RayAddress

_TICK_S = 0.1
_MAX_STOPPED_S = 10.0
# Ray's library ends the client process after 60 s.
_MAX_UNREACHABLE_S = 25.0
_PROBE_S = 2.0
_CLOSE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A server on this host: its name, process id, and the kernel's start time of that process."""

    name: str
    pid: int
    start_time: str


def find_process(name: str, pid: int) -> ServerProcess:
    """Describes a process that runs now."""
    _, start_time = _read_stat(pid)
    return ServerProcess(name=name, pid=pid, start_time=start_time)


def find_listener(name: str, socket_path: str) -> ServerProcess | None:
    """Finds the process that listens at a unix socket; None if nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(socket_path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return None
    pid, _, _ = struct.unpack("3i", credentials)
    return find_process(name, pid) if pid else None


def is_dead(server: ServerProcess) -> bool:
    """Returns True if a process has ended."""
    state, start_time = _read_stat(server.pid)
    return state in "ZX" or start_time != server.start_time


class ServerWatch:
    """A thread that calls `on_lost(reason)` once, when a server is gone.

    Args:
        processes: servers on this host.
        own: processes of this program: one that is stopped counts as gone, and will be killed.
        control_server: the address of one that may be elsewhere, if it is to be asked.
    """

    def __init__(
        self,
        processes: Sequence[ServerProcess],
        on_lost: Callable[[str], None],
        *,
        own: Sequence[ServerProcess] = (),
        control_server: RayAddress | None = None,
    ) -> None:
        self._on_lost, self._own = on_lost, frozenset(own)
        self._stopped_since_s: dict[ServerProcess, float] = {}
        # First the servers: the client process ends with them.
        self._processes, self._control_server = (*processes, *own), control_server
        self._answered_s = self._asked_s = time.monotonic()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jaxquard ray watch", daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """Ends the watch, and waits for an `on_lost` that is under way; returns False if that does not end."""
        self._is_closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_closing.wait(_TICK_S):
            reason = self.find_loss() or self._find_unreachable()
            if reason and not self._is_closing.is_set():
                self._on_lost(reason)
                return

    def find_loss(self) -> str:
        """Says which server of this host is gone at this moment; an empty text if none is."""
        for server in self._processes:
            if is_dead(server):
                return f"{server.name} (process {server.pid}) has died"
            state, _ = _read_stat(server.pid)
            if self._stopped_s(server, is_stopped=server in self._own and state in "Tt") > _MAX_STOPPED_S:
                return f"{server.name} (process {server.pid}) has been stopped for {_MAX_STOPPED_S:g} s"
        return ""

    def _find_unreachable(self) -> str:
        if self._control_server is not None and self._unreachable_s(self._control_server) > _MAX_UNREACHABLE_S:
            return f"the control server at {self._control_server} has not answered for {_MAX_UNREACHABLE_S:g} s"
        return ""

    def _stopped_s(self, server: ServerProcess, *, is_stopped: bool) -> float:
        now_s = time.monotonic()
        if not is_stopped:
            self._stopped_since_s.pop(server, None)
        return now_s - self._stopped_since_s.setdefault(server, now_s) if is_stopped else 0.0

    def _unreachable_s(self, address: RayAddress) -> float:
        now_s = time.monotonic()
        if now_s - self._asked_s > _PROBE_S:
            # Time in which this process did not run does not count.
            self._answered_s += max(0.0, now_s - self._asked_s - 2 * _PROBE_S)
            try:
                socket.create_connection((address.host, address.port), timeout=_PROBE_S).close()
                self._answered_s = time.monotonic()
            except OSError:
                pass
            self._asked_s = time.monotonic()
        return time.monotonic() - self._answered_s


def _read_stat(pid: int) -> tuple[str, str]:
    """Reads the state of a process and its start time; ("X", "") if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X", ""
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], fields[19]
