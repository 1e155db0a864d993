"""A process with one GPU that stands in for many: `python -m jaxquard.pricing.mock_gpu.mock_worker FD PLATFORM COUNT`.

XLA compiles for so many GPUs and runs the part of one of them; its collectives are mocked, so that a run takes the time
of the computation. That must be asked for before JAX starts, hence a process of its own. With the platform `cpu`, which
has no such mock, all devices are virtual ones and collectives are real: that is for tests.

It answers requests one at a time, so that nothing else runs on the GPU while a program is timed; workers of several
pricers take turns (`alone_on`). Programs to compile come many at a time: the compiler uses several threads.
"""

import contextlib
import fcntl
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from jaxquard import _jax_compat
from jaxquard.pricing.measure.machine.memory import peak_bytes
from jaxquard.pricing.mock_gpu.program_request import CompiledRequest, ProgramRequest
from jaxquard.pricing.mock_gpu.time_blocks import BlockBudget, time_blocks
from jaxquard.pricing.values.make_values import make_array
from jaxquard.pricing.workers.serve import Reply, reply, serve

_FIRST_TOGETHER = 3


class MockedPrograms:
    """Programs that are compiled for the devices."""

    def __init__(self, devices: Sequence[jax.Device], *, num_compilers: int) -> None:
        self._devices = tuple(devices)
        self._is_async = self._devices[0].platform != "cpu"
        self._name = os.environ.get("CUDA_VISIBLE_DEVICES", "0") if self._is_async else None
        self._pool = ThreadPoolExecutor(num_compilers, thread_name_prefix="compile")
        self._num_compiled = 0
        self._loaded: dict[int, tuple[ProgramRequest, _jax_compat.LoadedModule]] = {}

    def compile(self, requests: dict[int, ProgramRequest]) -> Iterator[Reply]:
        """Yields a `CompiledRequest` of each program, or the error, in their order.

        The compiler tries kernels for every shape that it has not met. Programs share shapes, so a few are compiled
        first, then twice as many, and so on: those that come later find what those before have tried.
        """
        waiting = list(requests.items())
        while waiting:
            count = max(_FIRST_TOGETHER, self._num_compiled)
            together, waiting = waiting[:count], waiting[count:]
            yield from self._compile_together(dict(together))
            self._num_compiled += len(together)

    def _compile_together(self, requests: dict[int, ProgramRequest]) -> Iterator[Reply]:
        begun = {number: self._pool.submit(self._load, request) for number, request in requests.items()}
        for number, future in begun.items():
            found = reply(future.result)
            if not found.error:
                loaded, self._loaded[number] = found.value, (requests[number], found.value)
                found = Reply(value=CompiledRequest(text=loaded.text, peak_bytes=peak_bytes(loaded)))
            yield found

    def run(self, number: int, budget: BlockBudget) -> tuple[float, ...]:
        """Times a program, and forgets it."""
        request, loaded = self._loaded.pop(number)
        with alone_on(self._name):
            return self._time(request, loaded, budget)

    def forget(self, number: int) -> None:
        """Forgets a program that is not to be run."""
        self._loaded.pop(number, None)

    def answer(self, request: tuple[Any, ...]) -> Iterable[Reply]:
        """Answers a request: the name of a method, and its arguments."""
        verb, *arguments = request
        if verb == "compile":
            return self.compile(*arguments)
        return [reply(partial(getattr(self, verb), *arguments))]

    def free_bytes(self) -> int | None:
        """The bytes of the device that a program can have; None if nobody says."""
        local = next(device for device in self._devices if device.process_index == jax.process_index())
        stats = local.memory_stats() or {}
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0) if "bytes_limit" in stats else None

    def _load(self, request: ProgramRequest) -> _jax_compat.LoadedModule:
        return _jax_compat.LoadedModule(
            request.code,
            devices=self._devices,
            num_inputs=len(request.inputs),
            free_outputs=request.free_outputs,
        )

    def _time(
        self, request: ProgramRequest, loaded: _jax_compat.LoadedModule, budget: BlockBudget
    ) -> tuple[float, ...]:
        sizes = tuple(size for _, size in request.axes)
        names = tuple(axis for axis, _ in request.axes)
        mesh = Mesh(np.array(self._devices).reshape(sizes), names, axis_types=(AxisType.Auto,) * len(names))
        donated = dict(request.successors)
        inputs = [
            make_array(
                jax.ShapeDtypeStruct(type_.shape, _jax_compat.dtype_named(type_.dtype)),
                NamedSharding(mesh, type_.spec),
                type_.values,
            )
            for type_ in request.inputs
        ]
        jax.block_until_ready(inputs)

        def run() -> list[list[jax.Array]]:
            outputs = loaded.run(inputs)
            for position, output in donated.items():
                if inputs[position].is_deleted():
                    inputs[position] = jax.make_array_from_single_device_arrays(
                        request.inputs[position].shape, inputs[position].sharding, outputs[output]
                    )
            if not self._is_async:
                jax.block_until_ready(outputs)
            return outputs

        return time_blocks(run, jax.block_until_ready, budget=budget)


@contextlib.contextmanager
def alone_on(name: str | None) -> Iterator[None]:
    """Within, no other process of this user times programs on the same GPU; None names no GPU.

    A lock on a file, which the system releases if the process ends.
    """
    if name is None:
        yield
        return
    safe = re.sub(r"[^\w-]", "_", name)
    path = os.path.join(tempfile.gettempdir(), f"jaxquard-{os.getuid()}-gpu-{safe}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def start_mocked_devices(platform: str, num_devices: int) -> tuple[jax.Device, ...]:
    """Starts JAX with so many devices.

    Raises:
        RuntimeError: if there is no such device, or JAX cannot mock it.
    """
    jax.config.update("jax_platforms", platform)
    if platform == "cpu":
        jax.config.update("jax_num_cpu_devices", num_devices)
    elif not _jax_compat.mock_gpus(num_devices):
        raise RuntimeError(f"JAX {jax.__version__} has no setting mock_num_gpu_processes; 0.10 and 0.11 have it")
    try:
        devices = jax.devices()
    except Exception as error:
        raise RuntimeError(str(error) or f"JAX {jax.__version__} has no {platform} backend. {_found()}") from error
    if len(devices) < num_devices:
        raise RuntimeError(f"JAX shows {len(devices)} devices of kind {devices[0].device_kind}, not {num_devices}")
    return tuple(sorted(devices, key=lambda device: device.id))[:num_devices]


def _found() -> str:
    """Returns what JAX and the system have of a GPU here."""
    plugins = [found.name for found in metadata.distributions() if found.name.startswith("jax-cuda")]
    has_driver = os.path.exists("/proc/driver/nvidia/version")
    return f"Found: {', '.join(plugins) or 'no plugin of JAX for CUDA'}; {'a' if has_driver else 'no'} NVIDIA driver"


def main(descriptor: int, platform: str, num_devices: int, num_compilers: int) -> None:
    """Serves until the other end closes."""

    def begin() -> tuple[str, Callable[[Any], Iterable[Reply]]]:
        devices = start_mocked_devices(platform, num_devices)
        return devices[0].device_kind, MockedPrograms(devices, num_compilers=num_compilers).answer

    serve(descriptor, begin)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
