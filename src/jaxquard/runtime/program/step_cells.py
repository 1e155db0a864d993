"""The cells of a step: those that it is given, of which donated ones are taken, and those that it fills.

A result of a program has parts along the first dim, and copies of each part; every copy is a cell on an actor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxquard.errors import DeletedArrayError
from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import Program
from jaxquard.runtime.remote_array import RemoteArray, RemotePart, join_types
from jaxquard.runtime.result_cell import ResultCell
from jaxquard.runtime.step_state import StepState


def find_sources(inputs: Sequence[Sequence[Any]], kind: type) -> frozenset[StepState]:
    """Finds the steps, under way or failed, whose results go into this one; `kind` is the class of cells."""
    cells = (value for values in inputs for value in values if isinstance(value, kind))
    states = {cell.step for cell in cells if cell.step is not None}
    return frozenset(state for state in states if state.error is not None or not state.is_finished)


def take_donated(program: Program, inputs: Sequence[Sequence[Any]], kind: type) -> frozenset[Any]:
    """Marks the cells of donated arguments as taken; returns those that more than one actor reads.

    Raises:
        DeletedArrayError: if a cell was donated before, or is donated and passed twice; then none is taken.
    """
    donated_args = frozenset(program.donated_args)
    donated: dict[Any, int] = {}
    readers: dict[Any, list[tuple[int, int]]] = {}
    for actor, (actor_program, values) in enumerate(zip(program.actors, inputs, strict=True)):
        for item, value in zip(actor_program.inputs, values, strict=True):
            if isinstance(value, kind):
                value.check_not_taken()
                readers.setdefault(value, []).append((actor, item.arg))
                if item.arg in donated_args:
                    donated[value] = item.arg
    for cell, arg in donated.items():
        others = {other for _, other in readers[cell]} - {arg}
        if others:
            raise DeletedArrayError(
                f"arguments {min(arg, *others)} and {max(arg, *others)} are the same array, and one of them "
                "is donated. Pass two arrays, or do not donate it."
            )
    for cell in donated:
        cell.take()
    return frozenset(cell for cell in donated if len(readers[cell]) > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLayout:
    """The type of a part, and (actor, number of the cell there) for each copy."""

    type: ArrayType
    copies: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLayout:
    """The parts of one result, in order, and the type of all of it."""

    parts: tuple[PartLayout, ...]
    type: ArrayType

    def make_array(self, cells: tuple[tuple[ResultCell, ...], ...]) -> RemoteArray:
        parts = [
            RemotePart(type=part.type, copies=tuple([cells[actor][number] for actor, number in part.copies]))
            for part in self.parts
        ]
        return RemoteArray(parts=tuple(parts), type=self.type)


def find_results(program: Program) -> tuple[ResultLayout, ...]:
    """Finds the layout of each result; cells are numbered as `link_program` orders the output slots."""
    copies: dict[tuple[int, int], list[tuple[int, int]]] = {}
    types: dict[tuple[int, int], ArrayType] = {}
    for actor, actor_program in enumerate(program.actors):
        numbers = {slot: number for number, slot in enumerate(dict.fromkeys(o.slot for o in actor_program.outputs))}
        for output in actor_program.outputs:
            key = (output.result, output.part)
            copies.setdefault(key, []).append((actor, numbers[output.slot]))
            types.setdefault(key, actor_program.types[output.slot])
    parts: dict[int, list[PartLayout]] = {}
    for key in sorted(copies):
        parts.setdefault(key[0], []).append(PartLayout(type=types[key], copies=tuple(copies[key])))
    return tuple(
        ResultLayout(parts=tuple(found), type=join_types([part.type for part in found]))
        for _, found in sorted(parts.items())
    )
