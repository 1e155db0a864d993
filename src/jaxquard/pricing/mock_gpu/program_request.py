"""A program as data for the process that runs it: StableHLO, and the arrays that it takes and gives.

The program is lowered here on an abstract mesh, for a platform that need not be here; nothing of the user's Python
travels. Random keys travel as the integers that they consist of.
"""

from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, PartitionSpec

from jaxquard import _jax_compat
from jaxquard.pricing.program.lower_program import lower_for_platform, program_donations
from jaxquard.pricing.program.sharded_program import ShardedProgram
from jaxquard.pricing.values.make_values import ValueRange
from jaxquard.pricing.values.read_ranges import read_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInput:
    """An array that a program takes: what its devices hold, so that a random key is integers."""

    shape: tuple[int, ...]
    dtype: str
    spec: PartitionSpec
    values: ValueRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest:
    """A program to compile and run elsewhere.

    Attributes:
        code: its StableHLO.
        axes: the mesh axes and their sizes, in order.
        free_outputs: for each output, whether the compiler chooses its sharding.
        successors: for each donated input, the output that takes its place in the next run.
    """

    code: bytes
    axes: tuple[tuple[str, int], ...]
    inputs: tuple[RequestInput, ...]
    free_outputs: tuple[bool, ...]
    successors: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRequest:
    """A program that is compiled elsewhere: its HLO, and its bytes on each device."""

    text: str
    peak_bytes: int


def lower_request(program: ShardedProgram, *, mesh: AbstractMesh, platform: str) -> tuple[ProgramRequest, str]:
    """Lowers a program for a platform; returns it with its text, which no other program has."""
    lowered = lower_for_platform(program, mesh=mesh, platform=platform)
    closed: Any = program.jaxpr
    types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals]
    request = ProgramRequest(
        code=_jax_compat.module_code(lowered),
        axes=tuple((str(axis), size) for axis, size in mesh.shape.items()),
        inputs=tuple(map(_input, types, program.in_specs, read_ranges(closed.jaxpr))),
        free_outputs=tuple(spec is None for spec in program.out_specs),
        successors=_successors(program, program_donations(program)),
    )
    return request, lowered.as_text()


def _input(type_: jax.ShapeDtypeStruct, spec: PartitionSpec, values: ValueRange) -> RequestInput:
    held: Any = type_
    if jax.dtypes.issubdtype(type_.dtype, jax.dtypes.prng_key):
        held = jax.eval_shape(jax.random.key_data, type_)
    return RequestInput(shape=tuple(held.shape), dtype=held.dtype.name, spec=spec, values=values)


def _successors(program: ShardedProgram, donated: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    closed: Any = program.jaxpr
    free = dict(enumerate(zip(closed.out_avals, program.out_specs, strict=True)))
    found = []
    for position in donated:
        aval, spec = closed.in_avals[position], program.in_specs[position]
        for output, (out_aval, out_spec) in free.items():
            if (out_aval.shape, out_aval.dtype, out_spec) == (aval.shape, aval.dtype, spec):
                found.append((position, output))
                del free[output]
                break
    return tuple(found)
