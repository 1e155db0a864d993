"""Data parallelism beside a 2D product: the further mesh axes over which the rows of x are sharded.

On a mesh (dp, rows, columns) an x at P(("dp", "rows"), "columns") has the rows of each batch shard on a 2D mesh of its
own. A `shard_map` that is manual over rows and columns alone would gather x over dp and multiply all of it in every
replica, so the products are manual over the batch axes, too. These are major to the mesh's rows, on the first dim of x
and of y; w is not sharded over them.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxquard._jax_compat import vmapped_mesh_axes
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.products.product import Axes
from jaxquard.gemm.algorithms.products.shardings import AnyMesh, axes_of, num_chips

BatchAxes = str | tuple[str, ...] | None
"""The argument `batch_axes` of a product: one axis, several, or None to find them."""


def read_batch_axes(batch_axes: Any, *, mesh: AnyMesh, used: Axes) -> Axes | None:
    """Returns the batch axes that a user names; None if they are to be found.

    Args:
        used: the axes that are the rows and columns of the mesh.

    Raises:
        GemmError: if they are no free axes of the mesh.
    """
    if batch_axes is None:
        return None
    axes = (batch_axes,) if isinstance(batch_axes, str) else batch_axes
    is_tuple = isinstance(axes, tuple | list)
    if not is_tuple or not all(axis in mesh.axis_names and axis not in used for axis in axes):
        free = ", ".join(axis for axis in mesh.axis_names if axis not in used) or "none"
        raise GemmError(
            f"batch_axes must be axes of the mesh besides its rows and columns, {' and '.join(used)}, but are "
            f"{batch_axes!r}. The mesh has {free}."
        )
    if len(set(axes)) < len(axes):
        raise GemmError(f"batch_axes must be different axes, but are {batch_axes!r}.")
    taken = [axis for axis in axes if axis in (*_manual_axes(), *vmapped_mesh_axes())]
    if taken:
        raise GemmError(
            f"batch_axes has {taken[0]!r}, but a `shard_map` or a `vmap(spmd_axis_name=...)` around shards x over it "
            "already. Leave it out."
        )
    return tuple(axes)


def find_batch_axes(batch_axes: BatchAxes, x: jax.Array, *, mesh: AnyMesh, used: Axes, num_shards: int) -> Axes:
    """Returns the axes besides `used` over which the first dim of x is sharded.

    Those of a concrete array and those that are Explicit are known. Of the others, which `jit` will shard as we say,
    all that divide the first dim are taken.

    Args:
        num_shards: the number of shards that the product itself makes of the first dim.

    Raises:
        GemmError: as `read_batch_axes`.
    """
    given = read_batch_axes(batch_axes, mesh=mesh, used=used)
    if given is not None:
        return given
    known, unknown = _known_axes(x, mesh)
    batch = tuple(axis for axis in known if axis not in used)
    for axis in free_axes(mesh, used):
        if axis in unknown and x.shape[0] % (num_shards * num_chips((*batch, axis), mesh.shape)) == 0:
            batch = (*batch, axis)
    return batch


def free_axes(mesh: AnyMesh, used: Axes) -> Axes:
    """Returns the axes of several chips that neither the product nor a transformation around it uses."""
    taken = {*used, *_manual_axes(), *vmapped_mesh_axes()}
    return tuple(axis for axis in mesh.axis_names if axis not in taken and mesh.shape[axis] > 1)


def with_batch(spec: PartitionSpec, batch_axes: Axes) -> PartitionSpec:
    """Returns a sharding whose first dim is sharded over the batch axes, too; these are major."""
    first, *rest = spec
    return PartitionSpec((*batch_axes, *axes_of(first)), *rest) if batch_axes else spec


def manual_axes(mesh: AnyMesh, used: Axes) -> Axes:
    """Returns the axes over which the `shard_map` of a product is manual: also those of `vmap(spmd_axis_name=...)`.

    That `vmap` shards the dim that it maps over its axes, which must be manual then.
    """
    return (*used, *(axis for axis in mesh.axis_names if axis in vmapped_mesh_axes() and axis not in used))


def shard_mapped(
    run: Callable[..., Any], *, mesh: AnyMesh, axes: Axes, in_specs: tuple[PartitionSpec, ...], out_specs: Any
) -> Callable[..., Any]:
    """Returns the `shard_map` of a product, manual over these axes.

    Inside of a `shard_map` over other axes, the mesh is that of the trace, in which these are manual.
    """
    around = jax.sharding.get_abstract_mesh()
    if around.manual_axes and around.axis_names == mesh.axis_names:
        mesh = around
    mapped = jax.shard_map(
        run, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=set(axes), check_vma=False
    )
    # Outside of `jit`, JAX runs a `shard_map` only if all axes are manual.
    return mapped if set(axes) >= set(mesh.axis_names) else jax.jit(mapped)


def check_array_sharding(name: str, array: jax.Array, spec: PartitionSpec, *, mesh: AnyMesh, call: str) -> None:
    """Checks that an array on Explicit axes, which nothing reshards silently, is sharded as a product wants it.

    Args:
        spec: the sharding that is wanted, over the axes of the product.
        call: an expression of the user for it.

    Raises:
        GemmError: with the sharding that was found and the one that is wanted.
    """
    explicit = {axis for axis, kind in _axis_types(mesh).items() if kind is AxisType.Explicit}
    found = _explicit_spec(array)
    ours, wanted = (
        [tuple(axis for axis in axes_of(entry) if axis in explicit) for entry in of] for of in (found, spec)
    )
    if ours != wanted:
        raise GemmError(
            f"on Explicit axes {name} must be sharded as the product needs it, {spec}, but is sharded as "
            f"{PartitionSpec(*found)}. Place it: jax.sharding.reshard({name}, {call})."
        )


def _manual_axes() -> Axes:
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def _known_axes(x: jax.Array, mesh: AnyMesh) -> tuple[Axes, Axes]:
    """Returns the axes over which the first dim of x is known to be sharded, and those that are not known."""
    sharding = None if isinstance(x, jax.core.Tracer) else getattr(x, "sharding", None)
    if isinstance(sharding, NamedSharding) and sharding.mesh.axis_names == mesh.axis_names:
        return axes_of(sharding.spec[0] if len(sharding.spec) else None), ()
    unknown = tuple(axis for axis, kind in _axis_types(mesh).items() if kind is not AxisType.Explicit)
    return tuple(axis for axis in axes_of(_explicit_spec(x)[0]) if axis in mesh.axis_names), unknown


def _explicit_spec(array: jax.Array) -> tuple[str | Axes | None, ...]:
    """Returns, for each dim, the Explicit axes over which it is sharded."""
    spec = jax.typeof(array).sharding.spec
    return (*spec, *(None,) * (array.ndim - len(spec)))


def _axis_types(mesh: AnyMesh) -> dict[str, AxisType]:
    return dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
