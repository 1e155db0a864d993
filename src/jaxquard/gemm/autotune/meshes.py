"""The meshes that the autotuner may choose from, and why there are none."""

import math
from collections.abc import Iterator, Sequence

from jaxquard.errors import InfeasibleGemmError
from jaxquard.gemm.algorithms.registry import mesh_shapes
from jaxquard.gemm.algorithms.sized_product import MeshShape
from jaxquard.gemm.problem import TABLE_1, FcLayer, GemmProblem, LayerPlan, ProductRole

# The fields that are M, K and N of a layer's forward product.
_FIELDS = {"M": "num_rows", "K": "in_features", "N": "out_features"}


def usable_meshes(
    problem: GemmProblem,
    plans: Sequence[LayerPlan],
    algorithm: str,
    num_chips: int,
    mesh_shape: MeshShape | None,
) -> list[MeshShape]:
    """Returns the meshes that divide every layer, given its stationary matrix.

    Raises:
        InfeasibleGemmError: there is none; it says why, with the nearest sizes that fit.
    """
    shapes = [shape for shape in mesh_shapes(algorithm, num_chips) if mesh_shape in (None, shape)]
    if not shapes:
        asked = f"the mesh {mesh_shape[0]}x{mesh_shape[1]}" if mesh_shape else f"{num_chips} chips"
        needs = {"cannon": "a square mesh", "1d_tp": "a mesh of one row", "fsdp": "a mesh of one column"}
        raise InfeasibleGemmError(f"{algorithm} needs {needs[algorithm]}, which {asked} cannot give. Choose another.")
    usable, reasons = [], []
    for shape in shapes:
        texts = (
            text
            for layer, plan in zip(problem.layers, plans, strict=True)
            for text in indivisible(layer, plan, num_rows=problem.num_rows, mesh_shape=shape)
        )
        why = next(texts, None)
        if why is None:
            usable.append(shape)
        else:
            reasons.append(f"{shape[0]}x{shape[1]}: {why}")
    if not usable:
        raise InfeasibleGemmError(
            f"no mesh of {num_chips} chips divides the layers for {algorithm} ({'; '.join(reasons[:4])}). "
            "Use another number of chips, or pad the layers."
        )
    return usable


def indivisible(layer: FcLayer, plan: LayerPlan, *, num_rows: int, mesh_shape: MeshShape) -> Iterator[str]:
    """Yields what of a layer a mesh does not divide, in words.

    The stationary matrix is sharded over the rows and columns of chips, the third size over both in turn.
    """
    rows, columns = reversed(mesh_shape) if plan.is_transposed else mesh_shape
    sizes = {"num_rows": num_rows, "in_features": layer.in_features, "out_features": layer.out_features}
    dataflow = TABLE_1[plan.stationary][ProductRole.FORWARD]
    dims = (*dataflow.stationary_dims, dataflow.sliced_dim)
    for dim, chips in zip(dims, (rows, columns, math.lcm(rows, columns)), strict=True):
        name = _FIELDS[dim]
        size, below = sizes[name], sizes[name] // chips * chips
        if size % chips:
            whose = "num_rows" if name == "num_rows" else f"{name} of layer {layer.name}"
            nearest = f"{below} or {below + chips}" if below else f"{chips}"
            yield f"{whose} is {size}, no multiple of {chips}, the nearest that fit: {nearest}"
