"""Meshes on which the compiler shards as it is told."""

from jax.sharding import AxisType, Mesh


def automatic_mesh(mesh: Mesh) -> Mesh:
    """The mesh with axes that the compiler may use as it is told; `jax.make_mesh` makes explicit ones by default."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
