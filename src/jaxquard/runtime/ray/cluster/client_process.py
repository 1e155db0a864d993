"""The controller's end of the client process, which is connected to Ray.

Ray's library ends a process whose raylet has died at its next access to the object store (`connection.cc`: "The
connection to the plasma store is failed. Terminate the process."), and one whose control server has died after a
minute; both with `_exit(1)`, so that neither `finally` nor `atexit` runs. So the process that has it is not the user's.

When the client process is gone, or what it needs is, every call raises `RayLost`, also those under way. The session
says so (`lose`), as it knows why.
"""

import collections
import contextlib
import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for_futures
from typing import Any

from jaxquard.errors import ActorFailed, MeshError
from jaxquard.runtime.engine import closed_error
from jaxquard.runtime.ray.client.message_pipe import MessagePipe, make_pipe
from jaxquard.runtime.ray.client.packing import SharedValue, pack, unpack
from jaxquard.runtime.ray.client.ray_actor import WorkerError, group_of
from jaxquard.runtime.ray.client.ray_commands import ConnectedRay, WantedRay
from jaxquard.runtime.ray.client.serve import CLOSE

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from jaxquard.runtime.ray.client.serve import main; main()"
)
_ANSWER_S = 120.0
"""How long a command may take, beyond what it waits for."""
_CLOSE_S = 40.0
_DEATH_S = 0.3
_MOST_WORDS = 1024
_log = logging.getLogger(__name__)


class RayLost(ActorFailed, MeshError):
    """Ray itself is gone, and all actors with it: a server has died, or the cluster does not answer."""

    is_lost = True


class Reference(Future[Any]):
    """A reply that is to come."""

    def value(self) -> Any:
        """Waits for the reply of a worker, and returns what it holds.

        Raises:
            WorkerError: if the worker's method raised an error.
            WorkerGone: if its process is gone.
            WorkerUnavailable: if it cannot be reached.
            RayLost: if Ray is gone.
        """
        found = unpack(*self.result())
        if isinstance(found, WorkerError):
            raise found
        return found


class ClientProcess:
    """A process that is connected to Ray, started here.

    Attributes:
        pid: its process id.
        connected: the Ray to which it is connected, after `connect`.
        dead_nodes: Ray's ids of hosts of which we know before Ray does that their raylet is gone.
    """

    connected = ConnectedRay(address="")
    dead_nodes: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._pending: dict[int, Reference] = {}
        self._numbers = itertools.count(1)
        self._dropped: collections.deque[int] = collections.deque()
        self._reason, self._is_closed, self._is_connected = "", False, False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        ours, theirs = make_pipe()
        with theirs:
            self._process = _start(theirs.fileno(), self._errors)
        self._pipe, self.pid = MessagePipe(ours), self._process.pid
        self._reader = threading.Thread(target=self._read, name="jaxquard ray client", daemon=True)
        self._reader.start()

    def connect(self, wanted: WantedRay) -> None:
        """Connects it to Ray; if that fails, it has ended.

        Raises:
            MeshError: saying why.
        """
        try:
            self.connected = self._request("connect", wanted, timeout_s=None)
            self._is_connected = True
        except BaseException:
            self.close(is_kind=False)
            raise

    # Commands.

    def new_number(self) -> int:
        """Returns a number for a worker or a placement."""
        return next(self._numbers)

    def request(self, command: str, *args: Any, takes_s: float = 0.0) -> Any:
        """Has a command of `RayCommands` executed, and returns its result.

        Args:
            takes_s: how long the command itself may wait.

        Raises:
            RayLost: if Ray is gone.
            MeshError: if the command fails.
        """
        return self._request(command, *args, timeout_s=takes_s + _ANSWER_S)

    def post(self, command: str, *args: Any, buffers: Sequence[Any] = ()) -> None:
        """Has a command executed, and does not wait for it."""
        self._check()
        self._send(None, command, args, buffers)

    def call(self, worker: int, method: str, args: tuple[Any, ...]) -> Reference:
        """Calls a method of a worker; returns at once."""
        packed = pack((method, args))
        self._send_dropped()
        arguments = (worker, group_of(method), packed.payload, packed.shared)
        return self._ask("call", arguments, packed.buffers)

    def share(self, value: Any) -> SharedValue:
        """Has Ray keep a value, as long as the result lives, for workers that are given the result."""
        number, packed = self.new_number(), pack(value)
        self._send_dropped()
        self.post("share", number, packed.payload, buffers=packed.buffers)
        shared = SharedValue(number)
        weakref.finalize(shared, self._dropped.append, number)
        return shared

    def _request(self, command: str, *args: Any, timeout_s: float | None) -> Any:
        try:
            return self._ask(command, args).result(timeout_s)[0]
        except TimeoutError:
            raise MeshError(f"Ray did not answer within {timeout_s:g} s ({command}). Is the host busy?") from None

    def _ask(self, command: str, args: tuple[Any, ...], buffers: Sequence[Any] = ()) -> Reference:
        number, reference = next(self._numbers), Reference()
        self._pending[number] = reference
        try:
            self._check()  # After it is known: else a loss at this moment would leave it waiting.
            self._send(number, command, args, buffers)
        except BaseException:
            self._pending.pop(number, None)
            raise
        return reference

    def _send(self, number: int | None, command: str, args: tuple[Any, ...], buffers: Sequence[Any]) -> None:
        with contextlib.suppress(OSError):  # It has ended: whoever waits learns so soon.
            self._pipe.send((number, command, args), buffers)

    def _send_dropped(self) -> None:
        dropped = tuple(self._dropped.popleft() for _ in range(len(self._dropped)))
        if dropped:
            self.post("drop", dropped)

    def _check(self) -> None:
        if self._reason or self._is_closed:
            raise self._make_error()

    def _make_error(self) -> MeshError:
        return RayLost(self._reason) if self._reason else closed_error()

    def _fail_pending(self) -> None:
        for number in tuple(self._pending):
            reference = self._pending.pop(number, None)
            if reference is not None:
                reference.set_exception(self._make_error())

    # Ending.

    def lose(self, reason: str) -> None:
        """Has everyone who waits, and every later call, get a `RayLost` with this reason."""
        self._reason = self._reason or reason
        self._fail_pending()

    def find_death(self) -> str:
        """Says how the process was killed, if it was; a private server that is gone too is the consequence then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Its threads end one by one, and a server with one of them, before the whole process has.
            self._process.wait(_DEATH_S)
        code = self._process.returncode
        return "" if code is None or code >= 0 else f"{self._name()} was killed by signal {-code}"

    def close(self, *, is_kind: bool = True) -> None:
        """Ends the process, and with it a private Ray. A second call does nothing.

        Args:
            is_kind: it may take its time, and leaves nothing behind when this returns; else it is killed.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if is_kind and not self._reason:
                self._send(None, CLOSE, (), ())
                self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()
            self._process.wait()
            self._pipe.shut_down()
            if threading.current_thread() is not self._reader:
                self._reader.join(_CLOSE_S)
            self._pipe.close()
            self._errors.close()
            self._fail_pending()

    def _read(self) -> None:
        try:
            while True:
                (number, result, error), buffers = self._pipe.receive()
                reference = self._pending.pop(number, None)
                if reference is not None and error is not None:
                    reference.set_exception(error)
                elif reference is not None:
                    reference.set_result((result, buffers))
                del reference, result, error, buffers  # Not held until the next one comes.
        except (EOFError, OSError):
            pass
        except Exception:
            _log.exception("a message of Ray's client process cannot be read")
        if not self._is_connected and not self._is_closed:
            self._process.wait()
            self.lose(self._describe_end())

    def _name(self) -> str:
        return f"jaxquard's client of Ray (process {self.pid})"

    def _describe_end(self) -> str:
        start = max(0, os.fstat(self._errors.fileno()).st_size - _MOST_WORDS)
        lines = os.pread(self._errors.fileno(), _MOST_WORDS, start).decode(errors="replace").strip().splitlines()
        how = f"has ended with code {self._process.returncode}" + (f": {lines[-1].strip()}" if lines else "")
        return self.find_death() or f"{self._name()} {how}"


def _start(descriptor: int, errors: Any) -> subprocess.Popen[bytes]:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    settings = [descriptor, os.getpid(), script]
    # -P: the working folder may have files with the names of modules. A session of its own: Ctrl-C is for us.
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, json.dumps(settings), json.dumps(list(map(str, sys.path)))],
        pass_fds=(descriptor,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        start_new_session=True,
    )


def wait_for(
    references: Sequence[Reference], *, num_returns: int, timeout_s: float | None
) -> tuple[list[Reference], list[Reference]]:
    """Waits until one or all of some replies have come, or failed; returns those, and the others."""
    assert num_returns in (1, len(references))
    when = FIRST_COMPLETED if num_returns == 1 else ALL_COMPLETED
    done, _ = wait_for_futures(references, timeout=timeout_s, return_when=when)
    return [one for one in references if one in done], [one for one in references if one not in done]


_current: list[ClientProcess] = []


def use_client(client: ClientProcess | None) -> None:
    """Makes a client process the one that this process uses; None: there is none any more."""
    _current[:] = [] if client is None else [client]


def current_client() -> ClientProcess:
    """Returns the client process that this process uses.

    Raises:
        MeshError: if there is none: the mesh is closed.
    """
    if not _current:
        raise closed_error()
    return _current[0]


def loss_message(reason: str) -> str:
    """Returns the message of a `RayLost`."""
    return f"{reason}, and all actors are lost with Ray: call mesh.restart(), and restore a checkpoint."
