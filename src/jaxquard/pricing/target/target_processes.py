"""Processes that compile for a target, each with its own compiler; they start when first needed, and wait for more."""

import math
import os
import pickle
import queue
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from jaxquard.pricing.compile.compile_processes import (
    CompilerProcess,
    CompileStalledError,
    NotStartedError,
    compiler_environment,
)
from jaxquard.pricing.end_of_time import OutOfTimeError, check_time
from jaxquard.pricing.target.compiled_program import CompiledProgram, CompileRequest
from jaxquard.pricing.target.find_target import CompileTarget

_MODULE = "jaxquard.pricing.target.target_worker"


class TargetProcesses:
    """Processes that compile for one target.

    Args:
        limit_s: that one program may take.
    """

    def __init__(self, target: CompileTarget, *, num_compilers: int, limit_s: float) -> None:
        self._target, self._limit_s = target, limit_s
        self._pool = ThreadPoolExecutor(num_compilers, thread_name_prefix="compile")
        self._idle: queue.SimpleQueue[CompilerProcess] = queue.SimpleQueue()
        self._processes: list[CompilerProcess] = []
        self.stop = weakref.finalize(self, _stop, self._processes, self._pool)

    def compile(
        self, requests: Sequence[CompileRequest], *, end_s: float = math.inf
    ) -> list["Future[CompiledProgram | str]"]:
        """Begins to compile; each result is the compiled program, or what went wrong; past the end OutOfTimeError."""
        return [self._pool.submit(self._compile, request, end_s) for request in requests]

    def _compile(self, request: CompileRequest, end_s: float) -> CompiledProgram | str:
        check_time(end_s)
        try:
            process = self._find_idle()
        except OSError as error:  # No more processes, or no memory for one.
            return f"no process could be started to compile in ({error})"
        try:
            answer = process.ask(pickle.dumps(request), limit_s=self._limit_s, end_s=end_s)
        except (EOFError, OSError, CompileStalledError, NotStartedError, OutOfTimeError) as error:
            # A program that ends or stalls the compiler takes its process with it; the next one starts another.
            process.kill()
            self._processes.remove(process)
            if isinstance(error, OutOfTimeError):
                raise
            return str(error)
        num_rematerialized = process.take_warnings()
        self._idle.put(process)
        return answer if isinstance(answer, str) else replace(answer, num_rematerialized=num_rematerialized)

    def _find_idle(self) -> CompilerProcess:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return self._start()

    def _start(self) -> CompilerProcess:
        environment = {**compiler_environment(), **self._target.environment}
        arguments = (self._target.platform, str(self._target.num_devices))
        process = CompilerProcess(_MODULE, arguments, environment=environment)
        self._processes.append(process)
        return process


def _stop(processes: list[CompilerProcess], pool: ThreadPoolExecutor) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    for process in list(processes):
        process.kill()


def default_num_compilers(num_cores: int) -> int:
    """Returns as many compilers as cores, but no more than the memory has room for: one takes about 2 GB."""
    try:
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return num_cores
    return max(1, min(num_cores, memory_bytes // (2 * 2**30)))
