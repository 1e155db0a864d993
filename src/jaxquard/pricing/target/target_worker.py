"""A process that compiles for a target: `python -m jaxquard.pricing.target.target_worker FD PLATFORM NUM_DEVICES`.

It never opens a chip: JAX runs on the CPU there, and the target's compiler is a library beside it. Each request is a
pickled `CompileRequest`; the answer has the compiled text, or what the compiler says against the program, and the
seconds of the processor that it took. It ends when the connection does.
"""

import os
import pickle
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils, topologies

from jaxquard import _jax_compat
from jaxquard.pricing.target.compiled_program import CompiledProgram, CompileRequest
from jaxquard.pricing.target.find_target import CompileTarget

_NO_TILES = "Couldn't find output tile sizes"
_LIBRARY_PRODUCTS = {"xla_gpu_enable_triton_gemm": "False"}


def main(descriptor: int, platform: str, num_devices: int) -> None:
    """Serves until the other end closes."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    jax.config.update("jax_platforms", "cpu")
    if platform == "cpu":
        jax.config.update("jax_num_cpu_devices", num_devices)
    connection = Connection(descriptor)
    connection.send_bytes(b"ready")
    known: dict[Any, tuple[Any, ...]] = {}
    while True:
        try:
            request: CompileRequest = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send(_answer(request, known))


def _answer(request: CompileRequest, known: dict[Any, tuple[Any, ...]]) -> CompiledProgram | str:
    start_s = time.process_time()
    try:
        key = (request.target.topology, request.target.mesh_shape)
        devices = known[key] = known.get(key) or target_devices(request.target)
        loaded = _load(request, devices)
        sizes = loaded.memory_analysis()
        return CompiledProgram(
            text=loaded.text,
            peak_bytes=int(
                sizes.argument_size_in_bytes
                + sizes.temp_size_in_bytes
                + sizes.output_size_in_bytes
                - sizes.alias_size_in_bytes
            ),
            argument_bytes=int(sizes.argument_size_in_bytes),
            temporary_bytes=int(sizes.temp_size_in_bytes),
            chips=chip_numbers(request.target, devices),
            compile_s=time.process_time() - start_s,
        )
    except Exception as error:
        return str(error) or type(error).__name__


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
