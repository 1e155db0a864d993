"""A whole step: the calls, and the instructions of every actor."""

from dataclasses import dataclass, field
from typing import Any

from jaxquard.ir.program.instructions import ActorProgram, Call
from jaxquard.ir.program.write import write_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A whole step.

    Attributes:
        calls: the distinct pieces of code; `Run.call` counts in it.
        actors: the program of each actor.
        constants: values that tasks use in every step (microbatch numbers, closed-over arrays);
            absent in a program read from text, and no part of equality.
        donated_args: flat arguments whose buffers the step takes.
    """

    calls: tuple[Call, ...]
    actors: tuple[ActorProgram, ...]
    constants: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    donated_args: tuple[int, ...] = ()

    def __str__(self) -> str:
        return write_program(self.calls, self.actors, donated_args=self.donated_args)
