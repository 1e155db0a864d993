"""The algorithms that are priced, by name, and the meshes that each can use."""

from collections.abc import Callable
from functools import partial

from jaxquard.cluster import Axis, Cluster
from jaxquard.errors import GemmError

from .cost_closed_form import steps_time_s
from .cost_product import SizedProduct
from .cost_steps import Mesh, Steps, cannon_steps, meshslice_steps, summa_steps, wang_steps


def _collective_steps(cluster: Cluster, product: SizedProduct, mesh: Mesh, num_slices: int) -> Steps:
    """Figure 2b: MeshSlice with one slice."""
    return meshslice_steps(cluster, product, mesh, 1)


def _wang_steps(cluster: Cluster, product: SizedProduct, mesh: Mesh, num_slices: int) -> Steps:
    """Wang's ring along the faster direction."""
    both = [wang_steps(cluster, product, mesh, num_slices, ring=axis) for axis in Axis]
    return min(both, key=steps_time_s)


_STEPS: dict[str, Callable[[Cluster, SizedProduct, Mesh, int], Steps]] = {
    "meshslice": meshslice_steps,
    "collective": _collective_steps,
    "wang": _wang_steps,
    "summa": summa_steps,
    "cannon": cannon_steps,
    "1d_tp": partial(wang_steps, ring=Axis.COLUMNS),
    "fsdp": partial(wang_steps, ring=Axis.ROWS),
}
ALGORITHMS = tuple(_STEPS)


def check_algorithm(algorithm: str) -> None:
    """Refuses a name that is not known."""
    if algorithm not in _STEPS:
        raise GemmError(f"the algorithm {algorithm!r} is unknown; the algorithms are {', '.join(ALGORITHMS)}.")


def product_steps(
    cluster: Cluster, product: SizedProduct, *, algorithm: str, mesh_shape: tuple[int, int], num_slices: int
) -> Steps:
    """What an algorithm does for a product; "wang", "summa" and the 1D ones unroll to at most `num_slices`."""
    check_algorithm(algorithm)
    return _STEPS[algorithm](cluster, product, mesh_shape, num_slices)


def mesh_shapes(algorithm: str, num_chips: int) -> tuple[tuple[int, int], ...]:
    """Every mesh of so many chips that an algorithm can use."""
    if algorithm == "1d_tp":
        return ((1, num_chips),)
    if algorithm == "fsdp":
        return ((num_chips, 1),)
    shapes = tuple((rows, num_chips // rows) for rows in range(1, num_chips + 1) if num_chips % rows == 0)
    return tuple(shape for shape in shapes if shape[0] == shape[1]) if algorithm == "cannon" else shapes
