"""The mesh of a cluster that need not be here, for the commands that ask its compiler."""

import math
import os
from typing import TYPE_CHECKING

import jax
from jax.sharding import AbstractMesh, AxisType

from jaxquard.cli.devices import AXES
from jaxquard.cli.exit_codes import UsageError
from jaxquard.cluster import Cluster, levels_of

if TYPE_CHECKING:
    from jaxquard.pricing import CompilePricer, MockGpuPricer, PriceCache

# A preset without a shape has all chips that there can be; of more than these, one host or slice is meant.
_MOST_CHIPS = 512


def start_for_target() -> None:
    """Has JAX run on the CPU: nothing runs, and a compiler's plugin would look for chips."""
    jax.config.update("jax_platforms", "cpu")
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")


def target_mesh(cluster: Cluster, sizes: tuple[int, ...] | None, *, by_level: bool = False) -> AbstractMesh:
    """Makes a mesh over the chips of a cluster, without devices.

    Args:
        sizes: of its axes; by default one axis over all chips.
        by_level: by default two axes instead, hosts and the chips of a host, or the dims of a torus.
    """
    levels = levels_of(cluster)
    if sizes is None:
        is_small = cluster.num_chips <= _MOST_CHIPS
        dims = [size for level in levels for size in reversed(level.dims)] if is_small else [levels[0].size]
        inner = dims[0]
        outer = math.prod(dims[1:])
        sizes = (outer, inner) if by_level and outer > 1 else (outer * inner,)
    if math.prod(sizes) > cluster.num_chips:
        raise UsageError(
            f"--mesh {'x'.join(map(str, sizes))} has {math.prod(sizes)} devices, but {cluster.name} has "
            f"{cluster.num_chips} chips. Give a smaller mesh, or a larger cluster."
        )
    return AbstractMesh(sizes, AXES[len(sizes)], axis_types=(AxisType.Auto,) * len(sizes))


def make_pricer(cluster: Cluster, mesh: AbstractMesh, cache: "PriceCache | None") -> "CompilePricer":
    """Makes the pricer that asks the cluster's compiler."""
    from jaxquard.pricing import CompilePricer

    return CompilePricer(cluster, mesh, cache=cache)


def make_mock_pricer(cluster: Cluster, mesh: AbstractMesh, cache: "PriceCache | None") -> "MockGpuPricer":
    """Makes the pricer that runs on one GPU in place of all those of the cluster."""
    from jaxquard.pricing import MockGpuPricer

    return MockGpuPricer(cluster, mesh, cache=cache)
