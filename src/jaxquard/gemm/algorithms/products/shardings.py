"""The mesh of a product, given or that of `jax.set_mesh`, and the shardings of whole matrices on it."""

import math
from collections.abc import Mapping

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from jaxquard._jax_compat import ambient_mesh
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.products.product import Axes, Product

AnyMesh = Mesh | AbstractMesh


def two_axes(mesh: AnyMesh, axis_names: tuple[str, str] | None) -> tuple[Axes, Axes]:
    """Returns the axes of the mesh's rows and of its columns.

    Raises:
        GemmError: if they are not named and the mesh has not just two, if it has none of that name, or if they are
            manual: inside of a `shard_map` there are shards, not whole matrices.
    """
    if axis_names is None:
        if len(mesh.axis_names) != 2:
            raise GemmError(
                f"a 2D product needs the two axes of the mesh that are its rows and columns, but the mesh has "
                f'{len(mesh.axis_names)}: {", ".join(mesh.axis_names)}. Name them: axis_names=("x", "y").'
            )
        axis_names = (mesh.axis_names[0], mesh.axis_names[1])
    is_pair = isinstance(axis_names, tuple | list) and len(axis_names) == 2 and axis_names[0] != axis_names[1]
    if not is_pair or not all(axis in mesh.axis_names for axis in axis_names):
        raise GemmError(
            f"axis_names must be two axes of the mesh, its rows and columns, but are {axis_names!r}. The mesh has "
            f"{', '.join(mesh.axis_names)}."
        )
    manual = [axis for axis in axis_names if axis in jax.sharding.get_abstract_mesh().manual_axes]
    if manual:
        raise GemmError(
            f"inside of a `shard_map` over {', '.join(manual)} each chip has shards, not whole matrices. Use "
            "`matmul_local` or `multiply_local`, or name only other axes in the `axis_names` of the shard_map."
        )
    return (axis_names[0],), (axis_names[1],)


def num_chips(axes: Axes, shape: Mapping[str, int]) -> int:
    """Returns the number of chips along these axes of a mesh of this shape."""
    return math.prod(shape[axis] for axis in axes)


def axes_of(entry: str | Axes | None) -> Axes:
    """Returns the axes that an entry of a `PartitionSpec` names."""
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def mesh_shape_of(product: Product, shape: Mapping[str, int]) -> tuple[int, int]:
    """Returns the rows and columns of chips that a product has on a mesh of this shape."""
    return num_chips(product.rows, shape), num_chips(product.columns, shape)


def lhs_spec(product: Product) -> PartitionSpec:
    """Returns the sharding of A[M,K]."""
    return _spec(product, "MK")


def rhs_spec(product: Product) -> PartitionSpec:
    """Returns the sharding of B[K,N]."""
    return _spec(product, "KN")


def out_spec(product: Product) -> PartitionSpec:
    """Returns the sharding of C[M,N]."""
    return _spec(product, "MN")


def _spec(product: Product, matrix: str) -> PartitionSpec:
    return PartitionSpec(*(product.axes(product.direction(dim, matrix)) or None for dim in matrix))


def find_mesh(mesh: AnyMesh | None) -> AnyMesh:
    """Returns the mesh that is given, or else the ambient one.

    Raises:
        GemmError: if there is neither, or what is given is no mesh.
    """
    found = ambient_mesh() if mesh is None else mesh
    if found is None:
        raise GemmError(
            "a 2D product needs a mesh, but none is given and none is set. Give mesh=..., or run it under "
            "`with jax.set_mesh(mesh):`."
        )
    if not isinstance(found, Mesh | AbstractMesh):
        raise GemmError(f"mesh must be a jax.sharding.Mesh, but is {found!r}. Make one: jax.make_mesh((4, 2), ...).")
    return found
