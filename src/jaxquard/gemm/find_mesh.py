"""The mesh of a product: the one that is given, or that of `jax.set_mesh`."""

from jax.sharding import AbstractMesh, Mesh

from jaxquard._jax_compat import ambient_mesh
from jaxquard.errors import GemmError
from jaxquard.gemm.shardings import AnyMesh


def find_mesh(mesh: AnyMesh | None) -> AnyMesh:
    """The mesh that is given, or else the ambient one.

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
