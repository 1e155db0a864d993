"""A process that works for this one, seen from here: started, asked one thing at a time, and ended."""

import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from jaxquard.pricing.end_of_time import StalledError, check_time
from jaxquard.pricing.workers.serve import Reply

_PACKAGES = str(Path(__file__).parents[3])
_DEVICE_COUNT = "--xla_force_host_platform_device_count"
# Of what a process has written, the end.
_MOST_WORDS = 4096
# The wait for an answer, in short pieces so that Ctrl-C is seen.
_PIECE_S = 0.5


class WorkerEndedError(RuntimeError):
    """A process ended while it was asked something."""


class NotStartedError(RuntimeError):
    """A process ended, or said what it lacks, before it could be asked anything."""


class PricingProcess:
    """A process that answers requests.

    Args:
        module: that it runs, which calls `serve`.
        arguments: of the module, after the descriptor of its connection.
        name: for errors.

    Raises:
        NotStartedError: if there can be no more processes.
    """

    def __init__(self, module: str, arguments: Sequence[str], *, environment: Mapping[str, str], name: str) -> None:
        self._name = name
        self._greeting: Reply | None = None
        self._in_use = threading.Lock()
        self._connection, theirs = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._num_read_bytes = 0
        descriptor = theirs.fileno()
        # -P: the working folder may have files with the names of modules. A session of its own: Ctrl-C is for us, and
        # we end it.
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(descriptor), *arguments],
                pass_fds=(descriptor,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            self._connection.close()
            self._log.close()
            raise NotStartedError(f"no process could be started ({error})") from error
        finally:
            theirs.close()

    def greet(self, *, limit_s: float, end_s: float = math.inf) -> Any:
        """Waits until it is ready, and returns its greeting; raises as `ask_all` does."""
        with self._in_use:
            return self._greet(limit_s, end_s)

    def ask(self, request: Any, *, limit_s: float, end_s: float = math.inf) -> Reply:
        """Returns the one reply to a request; see `ask_all`."""
        (found,) = self.ask_all(request, count=1, limit_s=limit_s, end_s=end_s)
        return found

    def ask_all(self, request: Any, *, count: int, limit_s: float, end_s: float = math.inf) -> Iterator[Reply]:
        """Yields the replies to a request.

        Args:
            limit_s: that each may take.
            end_s: of the time for them, by `time.monotonic`.

        Raises:
            NotStartedError: if the process has ended before it was ready, or says what it lacks.
            WorkerEndedError: if it has ended since.
            StalledError: if a reply takes too long.
            OutOfTimeError: if there is none at the end of the time.
        """
        with self._in_use:
            self._greet(limit_s, end_s)
            self._try(lambda: self._connection.send(request))
        for _ in range(count):
            with self._in_use:
                found = self._try(lambda: self._receive(limit_s, end_s))
            yield found

    def _try(self, talk: Callable[[], Any]) -> Any:
        try:
            return talk()
        except (EOFError, OSError) as error:
            raise WorkerEndedError(self._say_how_it_ended()) from error

    def take_log(self) -> bytes:
        """Returns what it has written since the last call."""
        with self._in_use:
            if self._log.closed:
                return b""
            start, stop = self._num_read_bytes, os.fstat(self._log.fileno()).st_size
            self._num_read_bytes = stop
            return os.pread(self._log.fileno(), stop - start, start)

    def kill(self) -> None:
        """Ends the process; what another thread asks it then ends too, and only after that are our ends closed."""
        self._process.kill()
        self._process.wait()
        with self._in_use:
            self._connection.close()
            self._log.close()

    def _greet(self, limit_s: float, end_s: float) -> Any:
        if self._greeting is None:
            try:
                self._greeting = self._receive(limit_s, end_s)
            except (EOFError, OSError) as error:
                raise NotStartedError(self._say_how_it_ended()) from error
        if self._greeting.error:
            raise NotStartedError(self._greeting.error)
        return self._greeting.value

    def _receive(self, limit_s: float, end_s: float) -> Reply:
        stalled_s = time.monotonic() + limit_s
        while not self._connection.poll(max(0.0, min(_PIECE_S, min(stalled_s, end_s) - time.monotonic()))):
            check_time(end_s)
            if time.monotonic() >= stalled_s:
                raise StalledError(f"no answer from {self._name} within {limit_s:g} s")
        return self._connection.recv()

    def _say_how_it_ended(self) -> str:
        """Says how it ended, with the last line that it wrote; that is empty once we have ended it ourselves."""
        how = f"{self._name} ended (exit code {self._process.wait()})"
        if self._log.closed:
            return how
        start = max(0, os.fstat(self._log.fileno()).st_size - _MOST_WORDS)
        lines = os.pread(self._log.fileno(), _MOST_WORDS, start).decode(errors="replace").strip().splitlines()
        return f"{how}: {lines[-1].strip()}" if lines else how


def worker_environment(ours: Mapping[str, str], *, platforms: str | None = "cpu") -> dict[str, str]:
    """Returns the variables of a process: ours, with our modules, without the number of devices.

    Args:
        platforms: of JAX there; None for what there is.
    """
    variables = dict(ours)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (_PACKAGES, ours.get("PYTHONPATH"))))
    variables.pop("JAX_PLATFORMS", None)
    if platforms is not None:
        variables["JAX_PLATFORMS"] = platforms
    flags = [flag for flag in ours.get("XLA_FLAGS", "").split() if not flag.startswith(_DEVICE_COUNT)]
    variables["XLA_FLAGS"] = " ".join(flags)
    return variables
