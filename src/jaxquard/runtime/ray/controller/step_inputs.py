"""Prepares the inputs of a step before it is sent: checks cells, brings them to their actors, shares large values.

A cell that another actor holds is sent there by a small program of one send, so that values cross as in any step. Large
host values that several processes take are sent to Ray once, which keeps them for all.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import ActorProgram, Input, Output, Program, Recv, Send
from jaxquard.runtime.ray.cluster.client_process import ClientProcess
from jaxquard.runtime.ray.controller.load_program import LoadedOnRay
from jaxquard.runtime.ray.controller.ray_cell import RayCell
from jaxquard.runtime.ray.controller.ray_run import RayRun


def check_cells(inputs: Sequence[Sequence[Any]]) -> None:
    """Raises for values that are not there: donated, lost with their process, or of a step that failed."""
    for values in inputs:
        for value in values:
            if isinstance(value, RayCell):
                value.check_not_taken()
                value.check_not_lost()
                if value.step is not None:
                    value.step.raise_error()


def drop_moved(program: Program, inputs: Sequence[Sequence[Any]], homes: Sequence[Sequence[Any]]) -> None:
    """Deletes donated cells of which another actor got a copy."""
    for actor, values, moved in zip(program.actors, inputs, homes, strict=True):
        for item, value, home in zip(actor.inputs, values, moved, strict=True):
            if value is not home and item.arg in program.donated_args:
                value.delete()


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
        """Returns the inputs, with every cell on the actor that takes it."""
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


_MIN_BYTES = 64 * 1024


def share_once(inputs: Sequence[Sequence[Any]], client: ClientProcess, *, num_processes: int) -> list[list[Any]]:
    """Replaces large values that more than one process takes by ones that Ray keeps for all of them."""
    num_takers: dict[int, int] = {}
    for values in inputs:
        for value in values:
            if isinstance(value, np.ndarray) and value.nbytes >= _MIN_BYTES:
                num_takers[id(value)] = num_takers.get(id(value), 0) + num_processes
    shared: dict[int, Any] = {}

    def share(value: Any) -> Any:
        if num_takers.get(id(value), 0) < 2:
            return value
        if id(value) not in shared:
            shared[id(value)] = client.share(value)
        return shared[id(value)]

    return [[share(value) for value in values] for values in inputs]
