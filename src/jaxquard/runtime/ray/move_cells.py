"""Brings cells to the actors that take them: a small program of one send, so that values cross as in any step."""

from collections.abc import Sequence
from typing import Any, Protocol

from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import ActorProgram, Input, Output, Program, Recv, Send
from jaxquard.runtime.ray.load_program import LoadedOnRay
from jaxquard.runtime.ray.ray_cell import RayCell
from jaxquard.runtime.ray.ray_run import RayRun


class _Engine(Protocol):
    def load(self, program: Program) -> LoadedOnRay: ...

    def execute(self, loaded: LoadedOnRay, inputs: Sequence[Sequence[Any]]) -> RayRun: ...


class CellMover:
    """Makes copies of cells on other actors."""

    def __init__(self, num_actors: int) -> None:
        self._num_actors = num_actors
        self._programs: dict[tuple[ArrayType, int, int], LoadedOnRay] = {}

    def bring_home(
        self, loaded: LoadedOnRay, inputs: Sequence[Sequence[Any]], engine: _Engine
    ) -> tuple[tuple[Any, ...], ...]:
        """The inputs, with every cell on the actor that takes it."""
        found: dict[tuple[RayCell, int], RayCell] = {}
        homes: list[tuple[Any, ...]] = []
        for actor, values in enumerate(inputs):
            program = loaded.program.actors[actor]
            home = []
            for number, value in enumerate(values):
                if isinstance(value, RayCell) and value.actor != actor:
                    if (value, actor) not in found:
                        type_ = program.types[program.inputs[number].slot]
                        found[value, actor] = self._copy(value, actor, type_, engine)
                    value = found[value, actor]
                home.append(value)
            homes.append(tuple(home))
        return tuple(homes)

    def _copy(self, cell: RayCell, actor: int, type_: ArrayType, engine: _Engine) -> RayCell:
        key = (type_, cell.actor, actor)
        if key not in self._programs:
            self._programs[key] = engine.load(_move(type_, cell.actor, actor, self._num_actors))
        inputs = [[cell] if other == cell.actor else [] for other in range(self._num_actors)]
        return engine.execute(self._programs[key], inputs).cells[actor][0]


def _move(type_: ArrayType, source: int, target: int, num_actors: int) -> Program:
    actors = [ActorProgram(types=()) for _ in range(num_actors)]
    actors[source] = ActorProgram(
        types=(type_,), inputs=(Input(slot=0, arg=0),), instructions=(Send(slots=(0,), target=target),)
    )
    actors[target] = ActorProgram(
        types=(type_,), instructions=(Recv(slots=(0,), source=source),), outputs=(Output(slot=0, result=0),)
    )
    return Program(calls=(), actors=tuple(actors))
