"""Which cells make up each result of a program: parts along the first dim, and copies of a part."""

from dataclasses import dataclass

from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import Program
from jaxquard.runtime.cell import Cell
from jaxquard.runtime.remote_array import RemoteArray, RemotePart


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLayout:
    """The type of a part, and (actor, number of the cell there) for each copy."""

    type: ArrayType
    copies: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLayout:
    """The parts of one result, in order."""

    parts: tuple[PartLayout, ...]

    def make_array(self, cells: tuple[tuple[Cell, ...], ...]) -> RemoteArray:
        return RemoteArray(
            parts=tuple(
                RemotePart(type=part.type, copies=tuple(cells[actor][number] for actor, number in part.copies))
                for part in self.parts
            )
        )


def find_results(program: Program) -> tuple[ResultLayout, ...]:
    """One layout for each result number; cells are numbered as `link_program` orders the output slots."""
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
    return tuple(ResultLayout(parts=tuple(parts[result])) for result in sorted(parts))
