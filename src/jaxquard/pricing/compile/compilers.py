"""Compiles lowered programs: here, in threads, or in processes of their own.

On CPU processes compile, before anything runs: compiling takes the cores that the virtual devices compute on. On 2
cores, 2 processes compile a transformer layer 1.2 to 1.5 times as fast as one process (XLA:CPU uses both cores for a
part of the time already), and threads are no faster than one after the other. A program that crashes or stalls the
compiler takes only its process with it.

On accelerators threads of this process compile while others run (section 4.3 of CFP): another process could not open
the devices, and the host's cores are free.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from jax.sharding import Mesh

from jaxquard.pricing.compile.compile_processes import CompileProcesses, OnCompiled, compile_timed, ignore
from jaxquard.pricing.compile.partitioner_warnings import OnRematerialized, disregard
from jaxquard.pricing.end_of_time import OutOfTimeError

Executable = Any


class Compilers(Protocol):
    """Compiles programs somewhere: here, in threads or in processes.

    Attributes:
        may_overlap: whether compiling leaves the devices alone.
    """

    may_overlap: bool

    def start(
        self, lowered: Any, *, free_outputs: tuple[bool, ...], end_s: float = math.inf
    ) -> Callable[[], Executable]:
        """Begins to compile; the result, when called, waits for the end of it.

        Args:
            end_s: of the time for it, by `time.monotonic`; the result then raises OutOfTimeError.
        """
        ...

    def stop(self) -> None:
        """Ends what is under way."""
        ...


class CompileHere:
    """One after the other, in the caller's thread."""

    may_overlap = False

    def __init__(self, *, on_compiled: OnCompiled = ignore, on_rematerialized: OnRematerialized = disregard) -> None:
        self._on_compiled, self._on_rematerialized = on_compiled, on_rematerialized

    def start(
        self, lowered: Any, *, free_outputs: tuple[bool, ...], end_s: float = math.inf
    ) -> Callable[[], Executable]:
        return lambda: compile_timed(lowered, self._on_compiled, self._on_rematerialized, end_s=end_s)

    def stop(self) -> None:
        return


class CompileInThreads:
    """Some at a time, in threads; one that is late is left behind, as nothing ends the compiler in a thread."""

    may_overlap = True

    def __init__(
        self,
        num_compilers: int,
        *,
        on_compiled: OnCompiled = ignore,
        on_rematerialized: OnRematerialized = disregard,
    ) -> None:
        self._num_compilers, self._on_compiled = num_compilers, on_compiled
        self._on_rematerialized = on_rematerialized
        self._pool: ThreadPoolExecutor | None = None

    def start(
        self, lowered: Any, *, free_outputs: tuple[bool, ...], end_s: float = math.inf
    ) -> Callable[[], Executable]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_compilers, thread_name_prefix="compile")
        compiled = self._pool.submit(compile_timed, lowered, self._on_compiled, self._on_rematerialized, end_s=end_s)

        def wait() -> Executable:
            try:
                return compiled.result(None if math.isinf(end_s) else max(0.0, end_s - time.monotonic()))
            except TimeoutError:
                raise OutOfTimeError from None

        return wait

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None


def choose_compilers(
    mesh: Mesh,
    *,
    num_compilers: int,
    limit_s: float,
    on_compiled: OnCompiled = ignore,
    on_rematerialized: OnRematerialized = disregard,
) -> Compilers:
    """So many compilers, of the kind that suits the platform; one is as good as none.

    `on_compiled` is called with the seconds of each compilation, `on_rematerialized` with a program of which values are
    gathered whole, possibly in another thread.
    """
    reports: dict[str, Any] = {"on_compiled": on_compiled, "on_rematerialized": on_rematerialized}
    if num_compilers < 2:
        return CompileHere(**reports)
    if mesh.devices.flat[0].platform != "cpu":
        return CompileInThreads(num_compilers, **reports)
    return CompileProcesses(mesh, num_compilers=num_compilers, limit_s=limit_s, **reports)
