"""Shardings in types: those of axes of type `AxisType.Explicit`, which JAX keeps in the type of every value.

`float32[8@x,4]` is sharded over the axis `x` by its type. On explicit axes the type decides, not inference: a value
that a pass makes, or that crosses between tasks, has the axes that its type names, and no others. Axes of type
`AxisType.Auto` are in no type; the compiler, and `pipeline.specs`, choose what is sharded over them.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

Axes = tuple[tuple[str, ...], ...]


def explicit_axes(mesh: Mesh | AbstractMesh | None) -> frozenset[str]:
    """Returns the axes of a mesh that are in types."""
    if mesh is None:
        return frozenset()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return frozenset(name for name, kind in kinds if kind is AxisType.Explicit)


def auto_axes(mesh: Mesh | AbstractMesh) -> frozenset[str]:
    """Returns the axes of a mesh that are in no type."""
    return frozenset(mesh.axis_names) - explicit_axes(mesh)


def typed_context(mesh: AbstractMesh | None) -> AbstractContextManager[None]:
    """Under it, what is traced has the explicit axes of the mesh in its types; nothing, if it has none."""
    if mesh is None or not explicit_axes(mesh):
        return nullcontext()
    return jax.sharding.use_abstract_mesh(mesh)


def type_axes(aval: Any) -> Axes:
    """Returns, for each leading dim of a value, the mesh axes over which its type shards it."""
    sharding = type_sharding(aval)
    if sharding is None:
        return ()
    return _without_end(tuple(_as_tuple(entry) for entry in sharding.spec))


def restrict_axes(spec: Axes, kept: frozenset[str]) -> Axes:
    """Returns a spec with only these axes."""
    return _without_end(tuple(tuple(axis for axis in axes if axis in kept) for axes in spec))


def type_sharding(aval: Any) -> NamedSharding | None:
    """Returns the sharding in a type; None on a mesh without explicit axes."""
    sharding = getattr(aval, "sharding", None)
    is_typed = isinstance(sharding, NamedSharding) and bool(explicit_axes(sharding.mesh))
    return sharding if is_typed else None


def abstract_type(aval: Any) -> jax.ShapeDtypeStruct:
    """Returns the type to trace a function for, given that of a value: with the sharding in it."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=type_sharding(aval))


def typed_struct(shape: tuple[int, ...], dtype: Any, *, spec: Axes, mesh: Mesh | AbstractMesh) -> jax.ShapeDtypeStruct:
    """Returns a type with the explicit axes of a spec in it; on a mesh without any, the plain type."""
    explicit = explicit_axes(mesh)
    if not explicit:
        return jax.ShapeDtypeStruct(shape, dtype)
    partition = PartitionSpec(*(axes or None for axes in restrict_axes(spec, explicit)))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, partition))


def with_dim(aval: Any, size: int, *, dim: int = 0) -> Any:
    """Returns the type of an array with one more dim, which is whole."""
    shape = (*aval.shape[:dim], size, *aval.shape[dim:])
    sharding = type_sharding(aval)
    if sharding is None:
        return aval.update(shape=shape)
    entries = [*sharding.spec, *[None] * (len(aval.shape) - len(sharding.spec))]
    entries.insert(dim, None)
    return aval.update(shape=shape, sharding=NamedSharding(sharding.mesh, PartitionSpec(*entries)))


def without_first_dim(aval: Any) -> jax.ShapeDtypeStruct:
    """Returns the type of one slice of an array along its first dim."""
    sharding = type_sharding(aval)
    if sharding is not None:
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
    return jax.ShapeDtypeStruct(aval.shape[1:], aval.dtype, sharding=sharding)


def _without_end(spec: Axes) -> Axes:
    """Returns a spec without the whole dims at its end."""
    while spec and not spec[-1]:
        spec = spec[:-1]
    return spec


def _as_tuple(entry: Any) -> tuple[str, ...]:
    if isinstance(entry, tuple):
        return entry
    return (entry,) if isinstance(entry, str) else ()
