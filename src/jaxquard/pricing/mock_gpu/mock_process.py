"""The process that holds the GPU, seen from the user's: started when first needed, asked, and ended.

One process has the GPU at a time: all pricers of a process share none, and each asks its own for one thing at a time.
"""

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from jaxquard.errors import PricingError
from jaxquard.pricing.end_of_time import OutOfTimeError, StalledError
from jaxquard.pricing.mock_gpu.program_request import ProgramRequest
from jaxquard.pricing.mock_gpu.time_blocks import BlockBudget
from jaxquard.pricing.workers.serve import Reply
from jaxquard.pricing.workers.worker import NotStartedError, PricingProcess, WorkerEndedError, worker_environment

_START_LIMIT_S = 300.0
# Every process would try kernels for a part of the program, and the others are not there.
_AUTOTUNE_ALONE = "--xla_gpu_shard_autotuning=false"
# The worker takes memory as it needs it, up to this part: the user's own process may hold some of the GPU's.
_MEMORY_SETTINGS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}


class MockProcess:
    """A process with one GPU that stands in for `num_devices`.

    Args:
        platform: "cuda"; "cpu" for virtual devices, with real collectives.
        limit_s: seconds that one program may take to compile or to run.
    """

    def __init__(self, *, platform: str, num_devices: int, num_compilers: int, limit_s: float) -> None:
        self._platform, self._limit_s = platform, limit_s
        self._arguments = platform, str(num_devices), str(num_compilers)
        self._worker: PricingProcess | None = None

    @property
    def device_kind(self) -> str:
        """The kind of the GPU; starts the process."""
        return self._start().greet(limit_s=_START_LIMIT_S)

    def compile(
        self, requests: Mapping[int, ProgramRequest], *, end_s: float = math.inf
    ) -> Iterator[tuple[int, Reply]]:
        """Yields, in their order, a `CompiledRequest` of each program, or its error.

        Raises:
            WorkerEndedError: if the process ends meanwhile.
            StalledError: if it is ended, as a program takes too long.
            OutOfTimeError: if it is ended, as the time is over.
        """
        replies = self._ask_all(("compile", dict(requests)), count=len(requests), end_s=end_s)
        yield from zip(requests, replies, strict=True)

    def run(self, number: int, budget: BlockBudget, *, end_s: float = math.inf) -> Reply:
        """Returns the times of a program that is compiled, or its error; raises as `compile` does."""
        return self._ask(("run", number, budget), end_s)

    def forget(self, number: int) -> None:
        """Lets go of a program that is compiled."""
        self._ask(("forget", number))

    def free_bytes(self) -> int | None:
        """The bytes of the GPU that a program can have; None if nobody says."""
        return self._ask(("free_bytes",)).value

    def stop(self) -> None:
        """Ends the process; another call starts a new one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()

    def _ask(self, request: tuple[Any, ...], end_s: float = math.inf) -> Reply:
        (found,) = self._ask_all(request, count=1, end_s=end_s)
        return found

    def _ask_all(self, request: tuple[Any, ...], *, count: int, end_s: float) -> Iterator[Reply]:
        worker = self._start()
        try:
            yield from worker.ask_all(request, count=count, limit_s=self._limit_s, end_s=end_s)
        except (WorkerEndedError, StalledError, OutOfTimeError):
            self.stop()
            raise

    def _start(self) -> PricingProcess:
        if self._worker is None:
            module, environment = "jaxquard.pricing.mock_gpu.mock_worker", mock_environment(self._platform, os.environ)
            try:
                self._worker = PricingProcess(
                    module, self._arguments, environment=environment, name="the process with the GPU"
                )
                self._worker.greet(limit_s=_START_LIMIT_S)
            except (NotStartedError, StalledError) as error:
                self.stop()
                said = str(error).splitlines()[0].rstrip(".")
                raise PricingError(_no_device(self._platform, said)) from error
        return self._worker


def _no_device(platform: str, said: str) -> str:
    if platform == "cpu":
        return f"no virtual devices: {said}."
    return (
        f"one GPU stands in for many, but JAX finds none that it can use: {said}. Run this on a machine with an NVIDIA "
        "GPU, with jax[cuda13] or jax[cuda12]; without one, price with the compiler or by measuring."
    )


def mock_environment(platform: str, ours: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the process: ours, with one GPU, its memory as needed, and autotuning by itself."""
    variables = worker_environment(ours, platforms=None)
    # What it compiles is for GPUs that are not there: nobody else should find it.
    variables["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    if platform != "cpu":
        variables["XLA_FLAGS"] = f"{variables['XLA_FLAGS']} {_AUTOTUNE_ALONE}".strip()
        for name, value in _MEMORY_SETTINGS.items():
            variables.setdefault(name, value)
        variables["CUDA_VISIBLE_DEVICES"] = ours.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return variables
