"""Compiles lowered programs: here, in threads, or in processes of their own.

On CPU processes compile, before anything runs: compiling takes the cores that the virtual devices compute on. A program
that crashes or stalls the compiler takes only its process with it.

On accelerators threads of this process compile while others run (section 4.3 of CFP): another process could not open
the devices, and the host's cores are free.

A process gets the module and the options that `lowered.compile()` would use, compiles them, and `lowered.compile()`
then finds the result in JAX's persistent compilation cache (25 ms instead of 0.8 s for a transformer layer). Where
nothing is found, for whatever reason, this process compiles: slower, never wrong. So it does where no process starts.
"""

import math
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from jaxquard import _jax_compat
from jaxquard.pricing.compile.compilation_folder import use_compilation_folder
from jaxquard.pricing.compile.partitioner_warnings import catch_warnings, count_rematerialized
from jaxquard.pricing.end_of_time import OutOfTimeError, check_time
from jaxquard.pricing.workers.worker import NotStartedError, PricingProcess, worker_environment
from jaxquard.pricing.workers.worker_pool import WorkerPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled program.

    Attributes:
        work_s: that the compiler took: in a process, the processor's time; else by the clock.
        num_rematerialized: values that the partitioner gathers whole.
    """

    executable: Any
    work_s: float
    num_rematerialized: int = 0


class Compilers(Protocol):
    """Compiles programs somewhere: here, in threads or in processes.

    Attributes:
        may_overlap: whether compiling leaves the devices alone.
    """

    may_overlap: bool

    def start(self, lowered: Any, *, free_outputs: tuple[bool, ...], end_s: float = math.inf) -> Callable[[], Compiled]:
        """Begins to compile; the result, when called, waits for the end of it.

        Args:
            end_s: of the time for it, by `time.monotonic`; the result then raises OutOfTimeError.
        """
        ...

    def stop(self) -> None:
        """Ends what is under way."""
        ...


def compile_here(lowered: Any, *, end_s: float = math.inf) -> Compiled:
    """Compiles in this thread. Nothing ends the compiler there, so nothing begins after the end of the time."""
    check_time(end_s)
    caught: list[int] = []
    start_s = time.perf_counter()
    with catch_warnings(caught.append):
        executable = lowered.compile()
    return Compiled(executable=executable, work_s=time.perf_counter() - start_s, num_rematerialized=sum(caught))


class CompileHere:
    """One after the other, in the caller's thread."""

    may_overlap = False

    def start(self, lowered: Any, *, free_outputs: tuple[bool, ...], end_s: float = math.inf) -> Callable[[], Compiled]:
        return lambda: compile_here(lowered, end_s=end_s)

    def stop(self) -> None:
        return


class CompileInThreads:
    """Some at a time, in threads; one that is late is left behind, as nothing ends the compiler in a thread."""

    may_overlap = True

    def __init__(self, num_compilers: int) -> None:
        self._num_compilers = num_compilers
        self._pool: ThreadPoolExecutor | None = None

    def start(self, lowered: Any, *, free_outputs: tuple[bool, ...], end_s: float = math.inf) -> Callable[[], Compiled]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_compilers, thread_name_prefix="compile")
        compiled = self._pool.submit(compile_here, lowered, end_s=end_s)

        def wait() -> Compiled:
            try:
                return compiled.result(None if math.isinf(end_s) else max(0.0, end_s - time.monotonic()))
            except TimeoutError:
                raise OutOfTimeError from None

        return wait

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None


class CompileProcesses:
    """Processes that start when they are first needed and then wait for more."""

    # The paper overlaps compiling with running. But processes compile for CPU devices, which need the same cores:
    # prices would be those of a busy machine.
    may_overlap = False

    def __init__(self, mesh: Mesh, *, num_compilers: int, limit_s: float) -> None:
        self._devices = tuple(mesh.devices.flat)
        self._num_compilers, self._limit_s = num_compilers, limit_s
        self._pool: WorkerPool | None = None
        self._folder: Any = None

    def start(self, lowered: Any, *, free_outputs: tuple[bool, ...], end_s: float = math.inf) -> Callable[[], Compiled]:
        """Begins to compile; the result, when called, waits for the end of it."""
        if self._pool is None:
            self._folder = tempfile.TemporaryDirectory(prefix="jaxquard-compiled-", ignore_cleanup_errors=True)
            start = _make_start(self._folder.name)
            self._pool = WorkerPool(start, num_workers=self._num_compilers, limit_s=self._limit_s)
        folder = self._folder.name
        with use_compilation_folder(folder):  # It is among the options.
            request = _jax_compat.compile_request(lowered, self._devices, free_outputs)
        if request is None:
            return lambda: compile_here(lowered, end_s=end_s)
        answered = self._pool.submit(request, end_s=end_s)

        def load() -> Compiled:
            try:
                found, log = answered.result()
            except NotStartedError:
                return compile_here(lowered, end_s=end_s)
            if found.error:
                raise RuntimeError(found.error)
            with use_compilation_folder(folder):
                executable = lowered.compile()
            return Compiled(executable=executable, work_s=found.work_s, num_rematerialized=count_rematerialized(log))

        return load

    def stop(self) -> None:
        """Ends the processes."""
        if self._pool is not None:
            self._pool.stop()
            self._folder.cleanup()
        self._pool = None


def _make_start(folder: str) -> Callable[[], PricingProcess]:
    def start() -> PricingProcess:
        return PricingProcess(
            "jaxquard.pricing.compile.compile_worker",
            (folder, str(len(jax.devices("cpu")))),
            environment=worker_environment(os.environ),
            name="the compiler's process",
        )

    return start


def choose_compilers(mesh: Mesh, *, num_compilers: int, limit_s: float) -> Compilers:
    """Returns so many compilers, of the kind that suits the platform; one is as good as none."""
    if num_compilers < 2:
        return CompileHere()
    if mesh.devices.flat[0].platform != "cpu":
        return CompileInThreads(num_compilers)
    return CompileProcesses(mesh, num_compilers=num_compilers, limit_s=limit_s)
