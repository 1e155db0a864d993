"""How near a result of a step is to an argument that it may be the next value of.

    params - 0.1 * grads           one step from params; the gradients come out of products
    0.9 * teacher + 0.1 * student  two steps from the teacher, and more from the student's old value

Two arguments may have the same form, and so may two results. Which belongs to which is in what the step computes:
a new value is the old one with something added, element by element, or what a loop carries, or one of both by a
condition.
"""

import heapq
import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from jaxquard._jax_compat import scan_counts
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, definitions, is_var, sub_jaxprs
from jaxquard.pipeline.operations import ELEMENTWISE, PASSING

_PASSING = PASSING | {"name"}


class UpdateDistances:
    """Counts the operations between results and arguments of a step, or of a call in it."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        """For a jaxpr whose inputs begin with the flat arguments."""
        self._jaxpr = jaxpr
        self._inputs: dict[int, dict[Var, int]] = {}
        self._bodies: dict[int, list[UpdateDistances]] = {}

    def between(self, arg: int, result: int) -> int | None:
        """Operations from a flat argument to a flat result, each element from that in its place; None if none lead."""
        if result not in self._inputs:
            self._inputs[result] = self._find(self._jaxpr.outvars[result])
        return self._inputs[result].get(self._jaxpr.invars[arg])

    @cached_property
    def _definitions(self) -> dict[Var, int]:
        return definitions(self._jaxpr.eqns)

    def _find(self, result: Any) -> dict[Var, int]:
        """All that leads to a result so, with the least number of operations."""
        found: dict[Var, int] = {}
        order = itertools.count()
        reached = [(0, next(order), result)] if is_var(result) else []
        while reached:
            distance, _, var = heapq.heappop(reached)
            if var in found:
                continue
            found[var] = distance
            position = self._definitions.get(var)
            if position is None:
                continue
            for source, operations in self._sources(position, var):
                if is_var(source) and source.aval.shape == result.aval.shape:
                    heapq.heappush(reached, (distance + operations, next(order), source))
        return found

    def _sources(self, position: int, output: Var) -> Iterator[tuple[Any, int]]:
        """The inputs of which an output has an element from each element, and by how many operations."""
        equation = self._jaxpr.eqns[position]
        place = equation.outvars.index(output)
        if equation.primitive.name not in ("cond", "jit", "pjit"):
            yield from ((atom, 1) for atom in _kept(equation, place))
            return
        given = equation.invars[1:] if equation.primitive.name == "cond" else equation.invars
        if position not in self._bodies:
            self._bodies[position] = [UpdateDistances(body) for body in sub_jaxprs(equation)]
        for distances in self._bodies[position]:
            for arg, atom in enumerate(given):
                inside = distances.between(arg, place)
                if inside is not None:
                    yield atom, inside + 1


def _kept(equation: Equation, place: int) -> list[Any]:
    """What an operation has an element of in each element of an output."""
    name, atoms = equation.primitive.name, equation.invars
    if name in ELEMENTWISE:
        return atoms
    if name in _PASSING:
        return atoms[place : place + 1]
    if name == "dynamic_update_slice" or name.startswith("scatter"):  # Some elements of the first input are others.
        return atoms[:1]
    if name == "scan":
        num_constants, num_carries = scan_counts(equation.params)
        return [atoms[num_constants + place]] if place < num_carries else []
    if name == "while":
        return [atoms[equation.params["cond_nconsts"] + equation.params["body_nconsts"] + place]]
    return []
