"""A process that compiles for a target: `python -m jaxquard.pricing.target.target_worker FD PLATFORM NUM_DEVICES`.

It never opens a chip: JAX runs on the CPU there, and the target's compiler is a library beside it. Each request is a
`CompileRequest`; the reply has the `CompiledProgram`, or what the compiler says against it.
"""

import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils, topologies

from jaxquard import _jax_compat
from jaxquard.pricing.measure.machine.memory import peak_bytes
from jaxquard.pricing.target.compiled_program import CompiledProgram, CompileRequest
from jaxquard.pricing.target.find_target import CompileTarget
from jaxquard.pricing.workers.serve import reply, serve

_NO_TILES = "Couldn't find output tile sizes"
_LIBRARY_PRODUCTS = {"xla_gpu_enable_triton_gemm": "False"}


def main(descriptor: int, platform: str, num_devices: int) -> None:
    """Serves until the other end closes."""
    jax.config.update("jax_platforms", "cpu")
    if platform == "cpu":
        jax.config.update("jax_num_cpu_devices", num_devices)
    known: dict[Any, tuple[Any, ...]] = {}
    serve(descriptor, lambda: (None, lambda request: [reply(partial(_compile, request, known))]))


def _compile(request: CompileRequest, known: dict[Any, tuple[Any, ...]]) -> CompiledProgram:
    start_s = time.process_time()
    key = (request.target.topology, request.target.mesh_shape)
    devices = known[key] = known.get(key) or target_devices(request.target)
    loaded = _load(request, devices)
    sizes = loaded.memory_analysis()
    return CompiledProgram(
        text=loaded.text,
        peak_bytes=peak_bytes(loaded),
        argument_bytes=int(sizes.argument_size_in_bytes),
        temporary_bytes=int(sizes.temp_size_in_bytes),
        chips=chip_numbers(request.target, devices),
        compile_s=time.process_time() - start_s,
    )


def _load(request: CompileRequest, devices: tuple[Any, ...]) -> _jax_compat.LoadedModule:
    """Compiles a program; for a GPU once more with the library's products, if XLA finds no tiles for its own.

    Tiles are tuned on a chip. Without one they are fixed, and do not fit all shapes.
    """

    def load(options: Mapping[str, str]) -> _jax_compat.LoadedModule:
        return _jax_compat.LoadedModule(
            request.code,
            devices=devices,
            num_inputs=request.num_inputs,
            free_outputs=request.free_outputs,
            compiler_options=options,
        )

    try:
        return load(request.compiler_options)
    except Exception as error:
        if _NO_TILES not in str(error):
            raise
        return load({**request.compiler_options, **_LIBRARY_PRODUCTS})


def target_devices(target: CompileTarget) -> tuple[Any, ...]:
    """Returns the devices of a target in the order of its mesh; of a TPU, laid out for the mesh's axes."""
    if target.platform == "cpu":
        return tuple(jax.devices("cpu")[: target.num_devices])
    if target.platform == "cuda":
        found = topologies.get_topology_desc(
            platform="cuda", topology_name="", topology=target.topology, target_config=target.config
        )
        return tuple(found.devices)
    found = topologies.get_topology_desc(platform="tpu", topology_name=target.topology)
    chips: list[Any] = [device for device in found.devices if getattr(device, "core_on_chip", 0) == 0]
    return tuple(mesh_utils.create_device_mesh(target.mesh_shape, chips, allow_split_physical_axes=True).flat)


def chip_numbers(target: CompileTarget, devices: tuple[Any, ...]) -> tuple[int, ...]:
    """Returns the number of each device's chip in the cluster; of a torus by its coordinates, the last dim fastest."""
    if target.platform != "tpu":
        return tuple(range(len(devices)))
    places = np.array([device.coords[: len(target.dims)] for device in devices])
    sizes = tuple(int(size) for size in places.max(axis=0) + 1)
    if sizes != target.dims:
        places = places[:, ::-1]
        sizes = sizes[::-1]
    assert sizes == target.dims, (sizes, target)
    return tuple(int(number) for number in np.ravel_multi_index(tuple(places.T), target.dims))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
