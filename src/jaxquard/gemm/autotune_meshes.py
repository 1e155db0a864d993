"""The meshes that the autotuner may choose from, and why there are none."""

from collections.abc import Sequence

from jaxquard.cluster import Cluster
from jaxquard.errors import GemmError

from .cost_algorithms import mesh_shapes
from .cost_product import SizedProduct
from .problem import GemmProblem


def usable_meshes(
    problem: GemmProblem,
    products: Sequence[Sequence[SizedProduct]],
    algorithm: str,
    num_chips: int,
    mesh_shape: tuple[int, int] | None,
) -> list[tuple[int, int]]:
    """The meshes that divide every layer.

    Raises:
        GemmError: there is none; it says why.
    """
    shapes = [shape for shape in mesh_shapes(algorithm, num_chips) if mesh_shape in (None, shape)]
    if not shapes:
        asked = f"the mesh {mesh_shape[0]}x{mesh_shape[1]}" if mesh_shape else f"{num_chips} chips"
        needs = {"cannon": "a square mesh", "1d_tp": "a mesh of one row", "fsdp": "a mesh of one column"}
        raise GemmError(f"{algorithm} needs {needs[algorithm]}, which {asked} cannot give. Choose another.")
    usable, reasons = [], []
    for shape in shapes:
        why = [
            f"{shape[0]}x{shape[1]}: in layer {layer.name}, {text}"
            for layer, triple in zip(problem.layers, products, strict=True)
            for text in (product.indivisible(shape) for product in triple)
            if text
        ]
        if why:
            reasons.append(why[0])
        else:
            usable.append(shape)
    if not usable:
        raise GemmError(
            f"no mesh of {num_chips} chips divides the layers for {algorithm} ({'; '.join(reasons[:4])}). "
            "Use another number of chips, or pad the layers."
        )
    return usable


def check_chips(cluster: Cluster, num_chips: int, mesh_shape: tuple[int, int] | None) -> None:
    """Refuses more chips than the cluster has, and a mesh of another number of chips."""
    if not 1 <= num_chips <= cluster.num_chips:
        raise GemmError(
            f"num_chips should be from 1 to the {cluster.num_chips} of {cluster.name}, found {num_chips}. "
            "Ask for fewer, or raise num_chips in the cluster's file."
        )
    if mesh_shape is not None and mesh_shape[0] * mesh_shape[1] != num_chips:
        raise GemmError(
            f"the mesh {mesh_shape[0]}x{mesh_shape[1]} has {mesh_shape[0] * mesh_shape[1]} chips, "
            f"but num_chips is {num_chips}. Make them agree."
        )
