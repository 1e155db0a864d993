"""A program to price: a jaxpr with its shardings on a mesh whose axes the compiler shards as constraints ask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec


def automatic_mesh(mesh: Mesh) -> Mesh:
    """Returns the mesh with automatic axes; `jax.make_mesh` makes explicit ones by default."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def abstract_mesh(mesh: Mesh | AbstractMesh) -> AbstractMesh:
    """Returns the mesh with automatic axes and without its devices."""
    names = mesh.axis_names
    return AbstractMesh(tuple(mesh.shape[name] for name in names), names, axis_types=(AxisType.Auto,) * len(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedProgram:
    """A jaxpr with its shardings.

    Attributes:
        name: for progress and errors, e.g. "segment 2, strategy M N K M"; not part of what is priced.
        in_specs: one for each input.
        out_specs: one for each output; None leaves it to the compiler.
        constraints: (equation, output, spec): which results of the jaxpr's own equations are held to a sharding.
        donated: inputs whose buffers may be used again; only those that an output can reuse count.
        fresh: inputs that come from the host for every step of a training loop: the batch. They do not change the
            program.

    Example:
        >>> w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> program = jq.pricing.ShardedProgram(
        ...     name="x @ w",
        ...     jaxpr=jax.make_jaxpr(jnp.matmul)(w, w),
        ...     in_specs=(jax.P("x"), jax.P()),
        ...     out_specs=(jax.P("x"),),
        ... )
        >>> program.name
        'x @ w'
    """

    name: str
    jaxpr: core.ClosedJaxpr
    in_specs: tuple[PartitionSpec, ...]
    out_specs: tuple[PartitionSpec | None, ...]
    constraints: tuple[tuple[int, int, PartitionSpec], ...] = ()
    donated: tuple[int, ...] = ()
    fresh: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        closed: Any = self.jaxpr
        jaxpr = closed.jaxpr
        assert len(self.in_specs) == len(jaxpr.invars), "one spec for each input"
        assert len(self.out_specs) == len(jaxpr.outvars), "one spec, or None, for each output"
        assert all(0 <= position < len(jaxpr.invars) for position in self.donated), "donated: positions of inputs"
        assert all(0 <= position < len(jaxpr.invars) for position in self.fresh), "fresh: positions of inputs"
        assert all(
            0 <= equation < len(jaxpr.eqns) and 0 <= output < len(jaxpr.eqns[equation].outvars)
            for equation, output, _ in self.constraints
        ), "constraints name outputs of equations"


def reshard_program(
    name: str,
    avals: Sequence[Any],
    from_specs: Sequence[PartitionSpec],
    to_specs: Sequence[PartitionSpec],
) -> ShardedProgram:
    """Makes the program that reshards arrays and does nothing else.

    Where both are the same, its price is that of a copy.

    Example:
        >>> w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> jq.pricing.reshard_program("rows to columns", [w], [jax.P("x")], [jax.P(None, "x")]).name
        'rows to columns'
    """
    types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    return ShardedProgram(
        name=name,
        jaxpr=jax.make_jaxpr(lambda *arrays: arrays)(*types),
        in_specs=tuple(from_specs),
        out_specs=tuple(to_specs),
    )
