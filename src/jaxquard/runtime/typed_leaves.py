"""The types of arguments on a mesh with explicit axes: those that the user gives them, or those that they come with."""

from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding

from jaxquard.ir.typed_shardings import explicit_axes, typed_struct
from jaxquard.pipeline.specs.infer_specs import Spec, SpecRules, spec_of
from jaxquard.runtime.remote_array import RemoteArray


def own_spec(leaf: Any) -> Spec:
    """Returns the spec that an argument comes with: of an array on actors, or of one with a `NamedSharding`."""
    if isinstance(leaf, RemoteArray):
        return leaf.type.spec
    sharding = getattr(leaf, "sharding", None)
    return spec_of(sharding.spec) if isinstance(sharding, NamedSharding) else ()


def argument_type(leaf: Any, *, spec: Spec | None, mesh: AbstractMesh) -> Any:
    """Returns the type to trace an argument as, with explicit axes in it; on a mesh without any, the argument itself.

    Args:
        spec: the one that the user gives it; None: as it comes.
    """
    if not explicit_axes(mesh):
        return leaf
    aval = leaf if isinstance(leaf, RemoteArray | jax.ShapeDtypeStruct) else jax.typeof(leaf)
    rules = SpecRules(dict(mesh.shape))
    found = rules.fit(own_spec(leaf) if spec is None else spec, aval.shape)
    type_ = typed_struct(aval.shape, aval.dtype, spec=found, mesh=mesh)
    return type_.update(weak_type=True) if aval.weak_type else type_


def type_on(leaf: Any, mesh: AbstractMesh) -> Any:
    """Returns the type of an argument with the same axes of another mesh in it; one without any as it is."""
    if not isinstance(leaf, jax.ShapeDtypeStruct) or not isinstance(leaf.sharding, NamedSharding):
        return leaf
    return leaf.update(sharding=NamedSharding(mesh, leaf.sharding.spec)) if leaf.sharding.mesh is not mesh else leaf
