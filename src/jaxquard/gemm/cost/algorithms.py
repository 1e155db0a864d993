"""The algorithms that are priced, by name, and the meshes that each can use."""

from collections.abc import Callable
from functools import partial
from typing import TypedDict, Unpack

from jaxquard.cluster import Axis, Cluster
from jaxquard.cluster.collective_time import ring_size
from jaxquard.errors import GemmError
from jaxquard.gemm.cost.products import SizedProduct
from jaxquard.gemm.cost.steps import Mesh, Steps, cannon_steps, meshslice_steps, summa_steps, wang_steps


class How(TypedDict, total=False):
    """What can be said of a product besides its slices; left out, it is done as `multiply` does without being told."""

    ring: Axis | None
    both_ways: bool
    num_packets: int


def _wang_steps(cluster: Cluster, product: SizedProduct, mesh: Mesh, num_slices: int, how: How) -> Steps:
    ring = how.get("ring") or longer_ring(product, mesh)
    return wang_steps(cluster, product, mesh, num_slices, ring=ring, both_ways=how.get("both_ways", False))


def _one_ring_steps(
    cluster: Cluster, product: SizedProduct, mesh: Mesh, num_slices: int, how: How, *, ring: Axis
) -> Steps:
    return wang_steps(cluster, product, mesh, num_slices, ring=ring, both_ways=how.get("both_ways", False))


def _summa_steps(cluster: Cluster, product: SizedProduct, mesh: Mesh, num_slices: int, how: How) -> Steps:
    return summa_steps(cluster, product, mesh, num_slices, num_packets=how.get("num_packets", 1))


_STEPS: dict[str, Callable[[Cluster, SizedProduct, Mesh, int, How], Steps]] = {
    "meshslice": lambda cluster, product, mesh, num_slices, how: meshslice_steps(cluster, product, mesh, num_slices),
    # Figure 2b: MeshSlice with one slice.
    "collective": lambda cluster, product, mesh, num_slices, how: meshslice_steps(cluster, product, mesh, 1),
    "wang": _wang_steps,
    "summa": _summa_steps,
    "cannon": lambda cluster, product, mesh, num_slices, how: cannon_steps(cluster, product, mesh, num_slices),
    "1d_tp": partial(_one_ring_steps, ring=Axis.COLUMNS),
    "fsdp": partial(_one_ring_steps, ring=Axis.ROWS),
}
ALGORITHMS = tuple(_STEPS)


def check_algorithm(algorithm: str) -> None:
    """Refuses a name that is not known."""
    if algorithm not in _STEPS:
        raise GemmError(f"the algorithm {algorithm!r} is unknown; the algorithms are {', '.join(ALGORITHMS)}.")


def product_steps(
    cluster: Cluster,
    product: SizedProduct,
    *,
    algorithm: str,
    mesh_shape: tuple[int, int],
    num_slices: int = 1,
    **how: Unpack[How],
) -> Steps:
    """What an algorithm does for a product; "wang", "summa" and the 1D ones unroll to at most `num_slices`."""
    check_algorithm(algorithm)
    return _STEPS[algorithm](cluster, product, mesh_shape, num_slices, how)


def longer_ring(product: SizedProduct, mesh: Mesh) -> Axis:
    """Where Wang's ring runs unless told: where more bytes move, as `sizes.choose_ring` has it."""
    sent = {moving.axis: (ring_size(moving.axis, mesh) - 1) * moving.num_elements for moving in product.moving}
    return Axis.COLUMNS if sent[Axis.COLUMNS] >= sent[Axis.ROWS] else Axis.ROWS


def mesh_shapes(algorithm: str, num_chips: int) -> tuple[tuple[int, int], ...]:
    """Every mesh of so many chips that an algorithm can use."""
    if algorithm == "1d_tp":
        return ((1, num_chips),)
    if algorithm == "fsdp":
        return ((num_chips, 1),)
    shapes = tuple((rows, num_chips // rows) for rows in range(1, num_chips + 1) if num_chips % rows == 0)
    return tuple(shape for shape in shapes if shape[0] == shape[1]) if algorithm == "cannon" else shapes
