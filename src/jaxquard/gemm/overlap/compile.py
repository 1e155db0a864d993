"""Compiles products for a TPU that is not there, with the TPU's own compiler (libtpu; design decision 7).

A topology is a name such as `v5e:4x8`: a generation, and the number of chips along each axis. The compiler is asked to
run collectives beside products (design decision 10).
"""

import importlib.util
import math
import os
import platform
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import mesh_utils, topologies
from jax.sharding import AxisType, Mesh, NamedSharding

from jaxquard._install_hint import install_hint
from jaxquard.errors import GemmError, InfeasibleGemmError
from jaxquard.gemm.algorithms.multiply import multiply
from jaxquard.gemm.algorithms.products.product import Product
from jaxquard.gemm.algorithms.products.shardings import lhs_spec, rhs_spec
from jaxquard.gemm.algorithms.registry import find_algorithm
from jaxquard.gemm.problem import AlgorithmOptions

TPU_COMPILER_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "xla_enable_async_all_gather": "true",
        "xla_tpu_enable_async_collective_fusion": "true",
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
        "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
        "xla_tpu_overlap_compute_collective_tc": "true",
    }
)
"""With these, all-gathers become asynchronous on every generation; only v5e has them by default.

`jax.jit(step, compiler_options=dict(TPU_COMPILER_OPTIONS))`; other platforms refuse them.
"""


TOPOLOGIES = ("v4:2x2x1", "v4:4x4x2", "v5e:2x4", "v5e:4x8", "v5e:8x16", "v5p:4x4x2", "v5p:4x4x4", "v6e:4x8", "v6e:8x8")
"""Some that the compiler knows."""

# libtpu reads them when it is loaded: ask no metadata service, share the library between processes, keep quiet.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}


def topology_mesh(topology: str, mesh_shape: tuple[int, int] | None = None) -> Mesh:
    """Returns a mesh of rows and columns over the chips of a topology; without a shape, as square as can be.

    Raises:
        GemmError: if libtpu is not installed, the compiler knows no such topology, or the shape does not fit it.
    """
    chips = _chips(topology)
    shape = mesh_shape or _square(len(chips))
    if math.prod(shape) != len(chips):
        raise GemmError(
            f"mesh {shape[0]}x{shape[1]} has {math.prod(shape)} chips, but topology {topology} has {len(chips)}. "
            f"Use a mesh such as {'x'.join(map(str, _square(len(chips))))}."
        )
    devices = mesh_utils.create_device_mesh(shape, chips, allow_split_physical_axes=True)
    return Mesh(devices, ("rows", "columns"), axis_types=(AxisType.Auto, AxisType.Auto))


def compile_product(
    mesh: Mesh,
    sizes: tuple[int, int, int],
    *,
    algorithm: str,
    product: Product,
    options: AlgorithmOptions,
    dtype: jax.typing.DTypeLike = jnp.bfloat16,
    compiler_options: Mapping[str, str] = TPU_COMPILER_OPTIONS,
) -> str:
    """Returns the scheduled HLO of one product of sizes M, K and N on a mesh from `topology_mesh`."""
    num_rows, num_summed, num_columns = sizes

    def matrix(shape: tuple[int, int], spec: jax.sharding.PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    def run(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return multiply(
            lhs,
            rhs,
            mesh=mesh,
            algorithm=algorithm,
            dataflow=product.dataflow,
            slices=options.slices,
            block=options.block if "block" in find_algorithm(algorithm).options else None,
            split_for_overlap=options.split_for_overlap,
            ring=options.ring and options.ring.value,
            bidirectional=options.bidirectional,
            num_packets=options.num_packets,
            kernel=options.kernel,
        )

    lowered = jax.jit(run).lower(
        matrix((num_rows, num_summed), lhs_spec(product)), matrix((num_summed, num_columns), rhs_spec(product))
    )
    text = lowered.compile(compiler_options=dict(compiler_options)).as_text()
    assert text is not None
    return text


def missing_compiler() -> str | None:
    """Returns why nothing can be compiled for a TPU here, or None where it can."""
    if importlib.util.find_spec("libtpu") is not None:
        return None
    machine = platform.machine()
    if machine != "x86_64":
        return (
            f"compiling for a TPU needs libtpu, which exists for x86-64 only, but this machine is {machine}. "
            "Use an x86-64 machine; it needs no TPU."
        )
    return f"compiling for a TPU needs libtpu, which is not installed. No TPU is needed. {install_hint('tpu')}"


def _chips(topology: str) -> list[Any]:
    """Returns one device a chip: v4 shows both cores of each."""
    missing = missing_compiler()
    if missing is not None:
        raise InfeasibleGemmError(missing)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    except Exception as error:
        reason = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ")
        raise GemmError(
            f"the TPU compiler knows no topology {topology!r} ({reason}). Use one such as: {', '.join(TOPOLOGIES)}."
        ) from None
    return [device for device in found.devices if getattr(device, "core_on_chip", 0) == 0]


def _square(num_chips: int) -> tuple[int, int]:
    columns = max(size for size in range(1, math.isqrt(num_chips) + 1) if num_chips % size == 0)
    return num_chips // columns, columns
