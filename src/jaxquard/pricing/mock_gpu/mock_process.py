"""The process that holds the GPU, seen from the user's: started when first needed, asked, and ended.

One process has the GPU at a time: all pricers of a process share none, and each asks its own for one thing at a time.
"""

import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from jaxquard.errors import PricingError
from jaxquard.pricing.end_of_time import OutOfTimeError
from jaxquard.pricing.mock_gpu.program_request import ProgramRequest
from jaxquard.pricing.mock_gpu.time_blocks import BlockBudget

_PACKAGES = str(Path(__file__).parents[3])
_START_LIMIT_S = 300.0
_MOST_WORDS = 4096
# Every process would try kernels for a part of the program, and the others are not there.
_AUTOTUNE_ALONE = "--xla_gpu_shard_autotuning=false"
# The worker takes memory as it needs it, up to this part: the user's own process may hold some of the GPU's.
_MEMORY_SETTINGS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}
_DEVICE_COUNT = "--xla_force_host_platform_device_count"


class WorkerEndedError(RuntimeError):
    """The process ended, or took too long and was ended, while it was asked something."""


class MockProcess:
    """A process with one GPU that stands in for `num_devices`.

    Args:
        platform: "cuda"; "cpu" for virtual devices, with real collectives.
        limit_s: seconds that one program may take to compile or to run.
    """

    def __init__(self, *, platform: str, num_devices: int, num_compilers: int, limit_s: float) -> None:
        self._platform, self._num_devices, self._num_compilers = platform, num_devices, num_compilers
        self._limit_s = limit_s
        self._in_use = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Any = None
        self._errors: Any = None
        self._greeting: Mapping[str, Any] = {}

    @property
    def device_kind(self) -> str:
        """The kind of the GPU; starts the process."""
        with self._in_use:
            self._start()
        return self._greeting["device_kind"]

    def compile(
        self, requests: Mapping[int, ProgramRequest], *, end_s: float = math.inf
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yields, in their order, `text` and `peak_bytes` of each program, or its `error`.

        Raises:
            WorkerEndedError: if the process ends meanwhile.
            OutOfTimeError: if it is ended, as the time is over.
        """
        with self._in_use:
            self._start()
            self._send(("compile", dict(requests)))
            for _ in requests:
                yield self._receive(self._limit_s, end_s)

    def run(self, number: int, budget: BlockBudget, *, end_s: float = math.inf) -> Mapping[str, Any]:
        """Returns `times_s` of a program that is compiled, or its `error`; OutOfTimeError as in `compile`."""
        return self._ask(("run", number, budget), end_s)

    def forget(self, number: int) -> None:
        """Lets go of a program that is compiled."""
        self._ask(("forget", number))

    def free_bytes(self) -> int | None:
        """The bytes of the GPU that a program can have; None if nobody says."""
        return self._ask(("memory",))["free_bytes"]

    def stop(self) -> None:
        """Ends the process; another call starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            self._connection.close()
            self._errors.close()

    def _ask(self, message: tuple[Any, ...], end_s: float = math.inf) -> Any:
        with self._in_use:
            self._start()
            self._send(message)
            return self._receive(self._limit_s, end_s)

    def _start(self) -> None:
        if self._process is not None:
            return
        self._connection, theirs = Pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        descriptor = theirs.fileno()
        module = "jaxquard.pricing.mock_gpu.mock_worker"
        arguments = (str(descriptor), self._platform, str(self._num_devices), str(self._num_compilers))
        try:
            # As the compilers' processes: not the working folder's modules, and Ctrl-C is for us.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                pass_fds=(descriptor,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=worker_environment(self._platform, os.environ),
                start_new_session=True,
            )
        finally:
            theirs.close()
        try:
            self._greeting = self._receive(_START_LIMIT_S)
        except WorkerEndedError as error:
            raise PricingError(f"the process for the GPU did not start: {error}.") from error
        if "error" in self._greeting:
            said = self._greeting["error"].splitlines()[0].rstrip(".")
            self.stop()
            raise PricingError(_no_device(self._platform, said))

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._ended("the process with the GPU ended") from error

    def _receive(self, limit_s: float, end_s: float = math.inf) -> Any:
        try:
            stalled_s = time.monotonic() + limit_s
            while not self._connection.poll(0.5):  # In short pieces, so that Ctrl-C is seen.
                if time.monotonic() >= end_s:
                    self.stop()
                    raise OutOfTimeError
                if time.monotonic() > stalled_s:
                    raise self._ended(f"no answer from the process with the GPU within {limit_s:g} s")
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended("the process with the GPU ended") from error

    def _ended(self, what: str) -> WorkerEndedError:
        said = self._last_line()
        self.stop()
        return WorkerEndedError(f"{what}{said}")

    def _last_line(self) -> str:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        start = max(0, os.fstat(self._errors.fileno()).st_size - _MOST_WORDS)
        lines = os.pread(self._errors.fileno(), _MOST_WORDS, start).decode(errors="replace").strip().splitlines()
        return f": {lines[-1].strip()}" if lines else ""


def _no_device(platform: str, said: str) -> str:
    if platform == "cpu":
        return f"no virtual devices: {said}."
    return (
        f"one GPU stands in for many, but JAX finds none that it can use: {said}. Run this on a machine with an NVIDIA "
        "GPU, with jax[cuda13] or jax[cuda12]; without one, price with the compiler or by measuring."
    )


def worker_environment(platform: str, ours: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the process: ours, with one GPU, its memory as needed, and autotuning by itself."""
    variables = dict(ours)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (_PACKAGES, ours.get("PYTHONPATH"))))
    # What it compiles is for GPUs that are not there: nobody else should find it.
    variables["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    flags = [flag for flag in ours.get("XLA_FLAGS", "").split() if not flag.startswith(_DEVICE_COUNT)]
    if platform != "cpu":
        flags.append(_AUTOTUNE_ALONE)
        for name, value in _MEMORY_SETTINGS.items():
            variables.setdefault(name, value)
        variables["CUDA_VISIBLE_DEVICES"] = ours.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    variables.pop("JAX_PLATFORMS", None)
    variables["XLA_FLAGS"] = " ".join(flags)
    return variables
