"""Builds programs by hand, for tests and benchmarks of the engine."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxquard import _jax_compat
from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import (
    ActorProgram,
    Call,
    Constant,
    Free,
    Input,
    Instruction,
    Output,
    Program,
    Recv,
    Run,
    Send,
)
from jaxquard.runtime.in_process.devices import make_cpu_devices


def array_type(*shape: int, dtype: str = "float32", spec: Sequence[Sequence[str]] = ()) -> ArrayType:
    return ArrayType(dtype=dtype, shape=shape, spec=tuple(map(tuple, spec)))


def make_meshes(num_actors: int, num_devices: int = 1, *, axis: str = "data") -> list[Mesh]:
    """Meshes on CPU clients of their own."""
    return [
        Mesh(np.array(devices), (axis,), axis_types=(AxisType.Auto,))
        for devices in make_cpu_devices([num_devices] * num_actors)
    ]


class ListBuilder:
    """Writes the list of one actor; methods return the slots that they define."""

    def __init__(self, program: "ProgramBuilder") -> None:
        self.program = program
        self.types: list[ArrayType] = []
        self.inputs: list[Input] = []
        self.constants: list[Constant] = []
        self.instructions: list[Instruction] = []
        self.outputs: list[Output] = []

    def _new(self, types: Sequence[ArrayType]) -> tuple[int, ...]:
        first = len(self.types)
        self.types += types
        return tuple(range(first, len(self.types)))

    def input(self, type_: ArrayType, arg: int, part: int = 0) -> int:
        (slot,) = self._new([type_])
        self.inputs.append(Input(slot=slot, arg=arg, part=part))
        return slot

    def constant(self, type_: ArrayType, value: int) -> int:
        (slot,) = self._new([type_])
        self.constants.append(Constant(slot=slot, value=value))
        return slot

    def run(self, task: str, call: int, *inputs: int) -> tuple[int, ...]:
        outputs = self._new(self.program.calls[call].outputs)
        self.instructions.append(Run(task=task, call=call, inputs=inputs, outputs=outputs))
        return outputs

    def send(self, target: int, *slots: int) -> None:
        self.instructions.append(Send(slots=slots, target=target))

    def receive(self, source: int, *types: ArrayType) -> tuple[int, ...]:
        slots = self._new(types)
        self.instructions.append(Recv(slots=slots, source=source))
        return slots

    def free(self, *slots: int) -> None:
        self.instructions.append(Free(slots=slots))

    def output(self, slot: int, result: int, part: int = 0) -> None:
        self.outputs.append(Output(slot=slot, result=result, part=part))

    def build(self) -> ActorProgram:
        return ActorProgram(
            types=tuple(self.types),
            inputs=tuple(self.inputs),
            constants=tuple(self.constants),
            instructions=tuple(self.instructions),
            outputs=tuple(self.outputs),
        )


class ProgramBuilder:
    """Collects calls and one list for each actor."""

    def __init__(self, num_actors: int) -> None:
        self.calls: list[Call] = []
        self.actors = [ListBuilder(self) for _ in range(num_actors)]

    def call(
        self,
        function: Callable[..., Any],
        *inputs: ArrayType,
        name: str = "",
        donated: tuple[int, ...] = (),
        specs: Sequence[Sequence[Sequence[str]]] | None = None,
    ) -> int:
        """Adds a function of these types; `specs` gives the sharding of each output."""
        args = [jax.ShapeDtypeStruct(type_.shape, _jax_compat.dtype_named(type_.dtype)) for type_ in inputs]
        code = jax.make_jaxpr(function)(*args)
        specs = specs or [()] * len(code.out_avals)
        outputs = tuple(
            array_type(*aval.shape, dtype=str(aval.dtype), spec=spec)
            for aval, spec in zip(code.out_avals, specs, strict=True)
        )
        self.calls.append(
            Call(
                name=name or function.__name__,
                inputs=tuple(inputs),
                outputs=outputs,
                donated=donated,
                code=code,
            )
        )
        return len(self.calls) - 1

    def build(self, *, donated_args: tuple[int, ...] = (), constants: tuple[Any, ...] = ()) -> Program:
        return Program(
            calls=tuple(self.calls),
            actors=tuple(actor.build() for actor in self.actors),
            constants=constants,
            donated_args=donated_args,
        )
