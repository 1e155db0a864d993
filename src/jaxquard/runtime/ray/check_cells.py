"""What a step is given, looked at before it is sent."""

from collections.abc import Sequence
from typing import Any

from jaxquard.ir.program import Program
from jaxquard.runtime.ray.ray_cell import RayCell


def check_cells(inputs: Sequence[Sequence[Any]]) -> None:
    """Raises for values that are not there: taken, lost with their process, or of a step that failed."""
    for values in inputs:
        for value in values:
            if isinstance(value, RayCell):
                value.check_not_taken()
                value.check_not_lost()
                if value.step is not None:
                    value.step.raise_error()


def drop_moved(program: Program, inputs: Sequence[Sequence[Any]], homes: Sequence[Sequence[Any]]) -> None:
    """A donated cell of which another actor got a copy is gone too."""
    for actor, values, moved in zip(program.actors, inputs, homes, strict=True):
        for item, value, home in zip(actor.inputs, values, moved, strict=True):
            if value is not home and item.arg in program.donated_args:
                value.delete()
