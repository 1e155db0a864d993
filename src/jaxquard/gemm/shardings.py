"""How the whole matrices of a product or of a layer are cut over a mesh."""

import math
from collections.abc import Mapping

from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from jaxquard.errors import GemmError
from jaxquard.gemm.problem import Dataflow
from jaxquard.gemm.product import Axes, Product

AnyMesh = Mesh | AbstractMesh


def two_axes(mesh: AnyMesh, axis_names: tuple[str, str] | None) -> tuple[Axes, Axes]:
    """The axes of the mesh's rows and of its columns.

    Raises:
        GemmError: if they are not named and the mesh has not just two, or if it has none of that name.
    """
    if axis_names is None:
        if len(mesh.axis_names) != 2:
            raise GemmError(
                f"a 2D product needs the two axes of the mesh that are its rows and columns, but the mesh has "
                f'{len(mesh.axis_names)}: {", ".join(mesh.axis_names)}. Name them: axis_names=("x", "y").'
            )
        axis_names = (mesh.axis_names[0], mesh.axis_names[1])
    if len(set(axis_names)) != 2 or not set(axis_names) <= set(mesh.axis_names):
        raise GemmError(
            f"axis_names must be two axes of the mesh, its rows and columns, but are {axis_names}. The mesh has "
            f"{', '.join(mesh.axis_names)}."
        )
    return (axis_names[0],), (axis_names[1],)


def num_chips(axes: Axes, shape: Mapping[str, int]) -> int:
    """How many chips lie along these axes of a mesh of this shape."""
    return math.prod(shape[axis] for axis in axes)


def axes_of(entry: str | Axes | None) -> Axes:
    """The axes that an entry of a `PartitionSpec` names."""
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def lhs_spec(product: Product) -> PartitionSpec:
    """How A[M,K] is cut."""
    return _spec(product, is_flipped=product.dataflow is Dataflow.RS)


def rhs_spec(product: Product) -> PartitionSpec:
    """How B[K,N] is cut."""
    return _spec(product, is_flipped=product.dataflow is Dataflow.LS)


def out_spec(product: Product) -> PartitionSpec:
    """How C[M,N] is cut."""
    return _spec(product, is_flipped=False)


def _spec(product: Product, *, is_flipped: bool) -> PartitionSpec:
    axes = (product.columns, product.rows) if is_flipped else (product.rows, product.columns)
    return PartitionSpec(*(names or None for names in axes))
