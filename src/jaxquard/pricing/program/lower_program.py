"""A program as StableHLO for a mesh, and the key that no other program has.

The text has no locations and no names of the user's, and is the same in every process, so two programs that compute
the same in the same way share their price whatever they are called.
"""

import hashlib
from typing import Any

import jax
from jax.extend import core
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from jaxquard import _jax_compat
from jaxquard.ir.array_type import usable_donations
from jaxquard.pricing.program.compiler_options import compiler_options
from jaxquard.pricing.program.drop_callbacks import drop_callbacks
from jaxquard.pricing.program.insert_constraints import insert_constraints
from jaxquard.pricing.program.sharded_program import ShardedProgram

_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable", "jax_default_prng_impl")


def lower_program(program: ShardedProgram, *, mesh: Mesh) -> Any:
    """Lowers a program; all of its inputs are kept, and callbacks that return nothing are not."""
    closed = prepare_jaxpr(program, mesh=mesh)
    jitted = _jit(program, closed, mesh=mesh, compiler_options=compiler_options(closed, mesh=mesh))
    return jitted.lower(*_input_types(closed))


def lower_for_platform(program: ShardedProgram, *, mesh: AbstractMesh, platform: str) -> Any:
    """Lowers a program on a mesh without devices, for a platform that need not be here."""
    closed = prepare_jaxpr(program, mesh=mesh)
    with _jax_compat.lowering_context(mesh, enable_x64=_jax_compat.is_x64_enabled()):
        return _jit(program, closed, mesh=mesh).trace(*_input_types(closed)).lower(lowering_platforms=(platform,))


def lowering_settings() -> list[tuple[str, str]]:
    """Returns the settings of JAX that change what a jaxpr lowers to for a platform that is not here."""
    return [(name, str(getattr(jax.config, name, None))) for name in _SETTINGS]


def prepare_jaxpr(program: ShardedProgram, *, mesh: Mesh | AbstractMesh) -> core.ClosedJaxpr:
    """Returns the jaxpr of a program with its constraints, and without callbacks that return nothing."""
    return drop_callbacks(insert_constraints(program.jaxpr, program.constraints, mesh=mesh))


def _jit(program: ShardedProgram, closed: core.ClosedJaxpr, *, mesh: Mesh | AbstractMesh, **settings: Any) -> Any:
    evaluate = core.jaxpr_as_fun(closed)

    def priced(*inputs: jax.Array) -> list[jax.Array]:
        return evaluate(*inputs)

    return jax.jit(
        priced,
        in_shardings=tuple(NamedSharding(mesh, spec) for spec in program.in_specs),
        out_shardings=[None if spec is None else NamedSharding(mesh, spec) for spec in program.out_specs],
        donate_argnums=program_donations(program),
        keep_unused=True,
        **settings,
    )


def _input_types(closed: Any) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals]


def program_donations(program: ShardedProgram) -> tuple[int, ...]:
    """The donated inputs of a program that an output of the same type and sharding can reuse."""
    closed: Any = program.jaxpr
    inputs, outputs = map(_kind, closed.in_avals, program.in_specs), map(_kind, closed.out_avals, program.out_specs)
    return usable_donations(sorted(program.donated), inputs=tuple(inputs), outputs=outputs)


def _kind(aval: Any, spec: Any) -> tuple[Any, ...]:
    axes = None if spec is None else tuple(spec)
    while axes and axes[-1] is None:
        axes = axes[:-1]
    return aval.shape, aval.dtype, axes


def lowered_key(lowered: Any) -> str:
    """A hash of the text."""
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()
