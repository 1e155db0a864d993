"""Compiles in processes of their own, which pass executables through JAX's persistent compilation cache.

A process gets the module and the options that `lowered.compile()` would use, compiles them, and `lowered.compile()`
then finds the result in the cache (25 ms instead of 0.8 s for a transformer layer). Where nothing is found, for
whatever reason, it compiles by itself: slower, never wrong. So it does where no process can be started.
"""

import logging
import math
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxquard import _jax_compat
from jaxquard.pricing.compile.compilation_folder import use_compilation_folder
from jaxquard.pricing.compile.partitioner_warnings import (
    OnRematerialized,
    catch_warnings,
    count_rematerialized,
    disregard,
)
from jaxquard.pricing.end_of_time import OutOfTimeError, check_time

_PACKAGES = str(Path(__file__).parents[2])
_DEVICE_COUNT = "--xla_force_host_platform_device_count"
# Of what a process has written, the end.
_MOST_WORDS = 1024
_log = logging.getLogger(__name__)


OnCompiled = Callable[[float], None]


def ignore(_: float) -> None:
    """Does nothing with the seconds of a compilation."""


def compile_timed(
    lowered: Any,
    on_compiled: OnCompiled,
    on_rematerialized: OnRematerialized = disregard,
    *,
    end_s: float = math.inf,
) -> Any:
    """Compiles in this thread and reports the seconds that it took, and the partitioner's warnings, however it ends.

    Nothing ends the compiler in a thread, so nothing begins after the end of the time.
    """
    check_time(end_s)
    start_s = time.perf_counter()
    try:
        with catch_warnings(partial(on_rematerialized, lowered)):
            return lowered.compile()
    finally:
        on_compiled(time.perf_counter() - start_s)


class CompileStalledError(RuntimeError):
    """A program took the compiler longer than it may."""


class NotStartedError(RuntimeError):
    """A process ended before it could take its first program."""


class CompileProcesses:
    """Processes that start when they are first needed and then wait for more."""

    # The paper overlaps compiling with running. But processes compile for CPU devices, which need the same cores:
    # prices would be those of a busy machine. On accelerators threads compile, and do overlap.
    may_overlap = False

    def __init__(
        self,
        mesh: Mesh,
        *,
        num_compilers: int,
        limit_s: float,
        on_compiled: OnCompiled = ignore,
        on_rematerialized: OnRematerialized = disregard,
    ) -> None:
        self._devices = tuple(mesh.devices.flat)
        self._num_compilers, self._limit_s, self._on_compiled = num_compilers, limit_s, on_compiled
        self._on_rematerialized = on_rematerialized
        self._group: _CompilerGroup | None = None

    def start(self, lowered: Any, *, free_outputs: tuple[bool, ...], end_s: float = math.inf) -> Callable[[], Any]:
        """Begins to compile; the result, when called, waits for the end of it."""
        group = self._group = self._group or _CompilerGroup(self._num_compilers, limit_s=self._limit_s)
        # The folder is among the options.
        with use_compilation_folder(group.folder):
            request = _jax_compat.compile_request(lowered, self._devices, free_outputs)
        if request is None:
            return lambda: compile_timed(lowered, self._on_compiled, self._on_rematerialized, end_s=end_s)
        compiled = group.compile(request, end_s=end_s)

        def load() -> Any:
            try:
                message, time_s, num_rematerialized = compiled.result()
            except NotStartedError:
                if self._group is not group:
                    raise
                return compile_timed(lowered, self._on_compiled, self._on_rematerialized, end_s=end_s)
            self._on_compiled(time_s)
            if num_rematerialized:
                self._on_rematerialized(lowered, num_rematerialized)
            if message:
                raise RuntimeError(message)
            with use_compilation_folder(group.folder):
                return lowered.compile()

        return load

    def stop(self) -> None:
        """Ends the processes."""
        if self._group is not None:
            self._group.end()
        self._group = None


class _CompilerGroup:
    """The processes, the threads that talk to them, and the folder of what they have compiled."""

    def __init__(self, num_workers: int, *, limit_s: float) -> None:
        self.folder = tempfile.mkdtemp(prefix="jaxquard-compiled-")
        self._limit_s = limit_s
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="compile")
        # None where there are no processes, or no more of them.
        self._idle: queue.SimpleQueue[CompilerProcess | None] = queue.SimpleQueue()
        self._workers: list[CompilerProcess] = []
        self._is_broken = False
        self.end = weakref.finalize(self, _end, self._workers, self._idle, self._pool, self.folder)
        for _ in range(num_workers):
            self._add_worker()

    def compile(self, request: bytes, *, end_s: float) -> "Future[tuple[str, float, int]]":
        """Answers with "" or what went wrong, the seconds that it took, and the number of warnings."""
        return self._pool.submit(self._compile, request, end_s)

    def _compile(self, request: bytes, end_s: float) -> tuple[str, float, int]:
        check_time(end_s)
        if self._is_broken:
            raise NotStartedError("no process could be started before")
        worker = self._idle.get()
        if worker is None:
            self._idle.put(None)  # For whoever waits next.
            raise NotStartedError("no process could be started before")
        try:
            message, time_s = worker.ask(request, limit_s=self._limit_s, end_s=end_s)
            num_rematerialized = worker.take_warnings()
        except (EOFError, OSError, CompileStalledError, OutOfTimeError, NotStartedError) as error:
            # It is of no more use; the next program gets another, which would not start either if this one did not.
            worker.kill()
            self._workers.remove(worker)
            if self.end.alive and isinstance(error, NotStartedError):
                self._give_up(error)
            elif self.end.alive:
                self._add_worker()
            raise
        self._idle.put(worker)
        return message, time_s, num_rematerialized

    def _add_worker(self) -> None:
        try:
            worker = CompilerProcess(
                "jaxquard.pricing.compile.compile_worker",
                (self.folder, str(len(jax.devices("cpu")))),
                environment=compiler_environment(),
            )
        except OSError as error:  # No more processes, or no memory for one; others may be there.
            if not self._workers and not self._is_broken:
                self._give_up(error)
            return
        self._workers.append(worker)
        self._idle.put(worker)

    def _give_up(self, error: Exception) -> None:
        self._is_broken = True
        self._idle.put(None)
        _log.warning("compiling in this process, one program after the other: %s", error)


def _end(
    workers: list["CompilerProcess"],
    idle: "queue.SimpleQueue[CompilerProcess | None]",
    pool: ThreadPoolExecutor,
    folder: str,
) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in list(workers):
        worker.kill()
    idle.put(None)  # There may be fewer processes than threads that wait for one.
    shutil.rmtree(folder, ignore_errors=True)


class CompilerProcess:
    """A process that compiles.

    Args:
        module: that it runs, which sends a message when it is ready and then answers requests.
        arguments: of the module, after the descriptor of its connection.
    """

    def __init__(self, module: str, arguments: Sequence[str], *, environment: Mapping[str, str]) -> None:
        self._connection, theirs = Pipe()
        self._has_started = False
        self._in_use = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
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
                stderr=self._errors,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError:
            self._connection.close()
            self._errors.close()
            raise
        finally:
            theirs.close()

    def ask(self, request: bytes, *, limit_s: float, end_s: float = math.inf) -> Any:
        """Compiles one program and returns the answer.

        Raises:
            NotStartedError: if the process has ended before it could take a program.
            EOFError: if it has ended since.
            CompileStalledError: if it takes too long.
            OutOfTimeError: if it has not answered at the end of the time.
        """
        with self._in_use:
            try:
                return self._ask(request, limit_s, end_s)
            except (EOFError, OSError) as error:
                how = f"the compiler ended its process (exit code {self._process.wait()}){self._log_tail()}"
                raise (EOFError if self._has_started else NotStartedError)(how) from error

    def _ask(self, request: bytes, limit_s: float, end_s: float) -> Any:
        stalled_s = time.monotonic() + limit_s
        if not self._has_started:
            self._wait(stalled_s, limit_s, end_s)
            self._connection.recv_bytes()
            self._has_started = True
        self._connection.send_bytes(request)
        self._wait(stalled_s, limit_s, end_s)
        return self._connection.recv()

    def _wait(self, stalled_s: float, limit_s: float, end_s: float) -> None:
        if self._connection.poll(max(0.0, min(stalled_s, end_s) - time.monotonic())):
            return
        check_time(end_s)
        raise CompileStalledError(f"not compiled within {limit_s:g} s")

    def take_warnings(self) -> int:
        """Returns the number of values that the partitioner gathers whole in what was compiled since the last call."""
        with self._in_use:
            if self._errors.closed:
                return 0
            start, stop = self._num_read_bytes, os.fstat(self._errors.fileno()).st_size
            self._num_read_bytes = stop
            return count_rematerialized(os.pread(self._errors.fileno(), stop - start, start))

    def _log_tail(self) -> str:
        """The last line that the process wrote, after a colon; nothing once we have ended it ourselves."""
        if self._errors.closed:
            return ""
        start = max(0, os.fstat(self._errors.fileno()).st_size - _MOST_WORDS)
        lines = os.pread(self._errors.fileno(), _MOST_WORDS, start).decode(errors="replace").strip().splitlines()
        return f": {lines[-1].strip()}" if lines else ""

    def kill(self) -> None:
        """Ends the process; what another thread asks it then ends too, and only after that are our ends closed."""
        self._process.kill()
        self._process.wait()
        with self._in_use:
            self._connection.close()
            self._errors.close()


def compiler_environment() -> dict[str, str]:
    """Returns ours, with our modules, and without the number of devices, which is an argument."""
    variables = {**os.environ, "JAX_PLATFORMS": "cpu"}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (_PACKAGES, os.environ.get("PYTHONPATH"))))
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_DEVICE_COUNT)]
    if flags:
        variables["XLA_FLAGS"] = " ".join(flags)
    else:
        variables.pop("XLA_FLAGS", None)
    return variables
