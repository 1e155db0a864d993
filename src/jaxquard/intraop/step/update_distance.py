"""The distance between an argument of a step and a result that may be its next value, in operations.

    params - 0.1 * grads           one step from params; the gradients come out of products
    0.9 * teacher + 0.1 * student  two steps from the teacher, and more from the student's old value

Two arguments may have the same form, and so may two results. What the step computes shows which belongs to which:
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
from jaxquard.ir.operations import ELEMENTWISE, PASSING

# These pass on their inputs: no operation.
_PASSING = PASSING | {"name"}
_COPYING = frozenset({"copy", "copy_p", "stop_gradient"})


class UpdateDistances:
    """Counts the operations between results and arguments of a step, or of a call in it."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        """Takes a jaxpr whose inputs begin with the flat arguments."""
        self._jaxpr = jaxpr
        self._places = {var: place for place, var in enumerate(jaxpr.invars)}
        self._inputs: dict[int, dict[int, int]] = {}
        self._bodies: dict[int, list[UpdateDistances]] = {}

    def between(self, arg: int, result: int) -> int | None:
        """Returns the operations from a flat argument to a flat result, element by element; None if none lead."""
        return self._leading_to(result).get(arg)

    def _leading_to(self, result: int) -> dict[int, int]:
        """Returns the flat arguments that lead to a flat result, with the number of operations."""
        if result not in self._inputs:
            found = self._find(self._jaxpr.outvars[result])
            self._inputs[result] = {self._places[var]: count for var, count in found.items() if var in self._places}
        return self._inputs[result]

    @cached_property
    def _definitions(self) -> dict[Var, int]:
        return definitions(self._jaxpr.eqns)

    def _find(self, result: Any) -> dict[Var, int]:
        """Returns all variables that lead to a result so, with the smallest number of operations."""
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
        """Yields the inputs of which an output has an element in each element, with the number of operations."""
        equation = self._jaxpr.eqns[position]
        place = equation.outvars.index(output)
        if equation.primitive.name not in ("cond", "jit", "pjit"):
            count = 0 if equation.primitive.name in _PASSING | _COPYING else 1
            yield from ((atom, count) for atom in _kept(equation, place))
            return
        # To take one of two is an operation, to call is none.
        is_cond = equation.primitive.name == "cond"
        given = equation.invars[1:] if is_cond else equation.invars
        if position not in self._bodies:
            self._bodies[position] = [UpdateDistances(body) for body in sub_jaxprs(equation)]
        for distances in self._bodies[position]:
            for arg, inside in distances._leading_to(place).items():
                yield given[arg], inside + is_cond


def _kept(equation: Equation, place: int) -> list[Any]:
    """Returns the inputs of which each element of an output has an element."""
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
