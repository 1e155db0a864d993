"""What cells were run on, in words."""

import jax
from jax.sharding import Mesh

from jaxquard.pricing.environment import device_kind
from jaxquard.pricing.steady_cpu import is_memory_kept


def describe_machine(mesh: Mesh) -> str:
    """`8 x cpu: some processor, 2 cores, JAX 0.10.2, memory kept`: only ratios in a cell compare with others'."""
    kept = ", memory kept" if is_memory_kept() else ""
    return f"{mesh.size} x {device_kind(mesh)}, JAX {jax.__version__}{kept}"
