"""The peak number of bytes that a step holds on a device."""

import math
from typing import Any

import numpy as np

from jaxquard import _jax_compat
from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import ActorProgram, Free, Program, Recv, Run


def jit_peak_bytes(compiled: Any) -> int:
    """Of one jit, on one device: arguments, results that are not in their place, and temporaries."""
    memory = compiled.memory_analysis()
    kept = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return kept + memory.temp_size_in_bytes


def program_peak_bytes(program: Program, temporaries: dict[int, int], axis_sizes: dict[str, int]) -> list[int]:
    """Of a program, for each actor, on one of its devices.

    Slots are walked through their lives; while a call runs, its outputs and temporaries count too.

    Args:
        temporaries: bytes of temporaries of each call.
        axis_sizes: the axes of an actor's mesh.
    """
    return [_actor_peak(program, actor, temporaries, axis_sizes) for actor in program.actors]


def _actor_peak(program: Program, actor: ActorProgram, temporaries: dict[int, int], axis_sizes: dict[str, int]) -> int:
    size = [_size_bytes(type_, axis_sizes) for type_ in actor.types]
    live = sum(size[entry.slot] for entry in (*actor.inputs, *actor.constants))
    peak = live
    for instruction in actor.instructions:
        if isinstance(instruction, Run):
            donated = sum(size[instruction.inputs[p]] for p in program.calls[instruction.call].donated)
            live += sum(size[slot] for slot in instruction.outputs) - donated
            peak = max(peak, live + temporaries[instruction.call])
        elif isinstance(instruction, Recv):
            live += sum(size[slot] for slot in instruction.slots)
            peak = max(peak, live)
        elif isinstance(instruction, Free):
            live -= sum(size[slot] for slot in instruction.slots)
    return peak


def _size_bytes(type_: ArrayType, axis_sizes: dict[str, int]) -> int:
    num_shards = math.prod(axis_sizes[axis] for axes in type_.spec for axis in axes)
    item = np.dtype(_jax_compat.dtype_named(type_.dtype)).itemsize
    return math.prod(type_.shape) * item // num_shards
