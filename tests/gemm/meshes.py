"""Small meshes of virtual CPU devices, matrices whose products are exact, and quick compilation."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

MESHES = [(8, 1), (4, 2), (2, 4), (1, 8), (2, 2)]

# Less work for the compiler; and what the program asks for twice is done twice, as on a TPU, where barriers hold:
# XLA:CPU drops `optimization_barrier` before it merges equal collectives.
OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_disable_hlo_passes": "cse",
}


@functools.cache
def make_mesh(shape: tuple[int, ...], names: tuple[str, ...] = ("x", "y")) -> Mesh:
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))


def place(array: Any, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    return jax.device_put(array, NamedSharding(mesh, spec))


def whole_numbers(*shape: int, seed: int, largest: int = 4, dtype: Any = jnp.float32) -> jax.Array:
    """A matrix of small whole numbers: every product of such is exact in float32, in whatever order it is added."""
    return jnp.asarray(np.random.default_rng(seed).integers(-largest, largest + 1, size=shape), dtype)


def exact(array: Any) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


def compile_quickly(fn: Callable[..., Any], *args: Any) -> Any:
    return jax.jit(fn, compiler_options=OPTIONS).lower(*args).compile()
