"""How near a result of a step is to an argument that it may be the next value of.

    params - 0.1 * grads           one step from params; the gradients come out of products
    0.9 * teacher + 0.1 * student  two steps from the teacher, and more from the student's old value

Two arguments may have the same form, and so may two results. Which belongs to which is in what the step computes:
a new value is the old one with something added, element by element, or what a loop carries, or one of both by a
condition.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from jaxquard._jax_compat import scan_counts
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, definitions, is_var, sub_jaxprs
from jaxquard.pipeline.operations import ELEMENTWISE

_PASSING = frozenset(["optimization_barrier", "sharding_constraint", "name"])


class UpdateDistances:
    """Counts the operations between results and arguments of a step."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        """For a jaxpr without calls, whose inputs begin with the flat arguments."""
        self._jaxpr = jaxpr
        self._inputs: dict[int, dict[Var, int]] = {}

    def between(self, arg: int, result: int) -> int | None:
        """Operations from a flat argument to a flat result, each element from that in its place; None if none lead."""
        if result not in self._inputs:
            self._inputs[result] = self._find(self._jaxpr.outvars[result])
        return self._inputs[result].get(self._jaxpr.invars[arg])

    @cached_property
    def _definitions(self) -> dict[Var, int]:
        return definitions(self._jaxpr.eqns)

    def _find(self, result: Any) -> dict[Var, int]:
        """All that leads to a result so, with the number of operations."""
        found: dict[Var, int] = {result: 0} if is_var(result) else {}
        reached = list(found)
        for var in reached:
            position = self._definitions.get(var)
            if position is None:
                continue
            for source in set(_sources(self._jaxpr.eqns[position], var)):
                if source not in found and source.aval.shape == result.aval.shape:
                    found[source] = found[var] + 1
                    reached.append(source)
        return found


def _sources(equation: Equation, output: Var) -> Iterator[Var]:
    """The inputs of which an output has an element from each element."""
    name, atoms, place = equation.primitive.name, equation.invars, equation.outvars.index(output)
    if name in ELEMENTWISE:
        yield from filter(is_var, atoms)
    elif name in _PASSING:
        yield from filter(is_var, atoms[place : place + 1])
    elif name == "dynamic_update_slice" or name.startswith("scatter"):  # Some elements of the first input are others.
        yield from filter(is_var, atoms[:1])
    elif name == "scan":
        num_constants, num_carries = scan_counts(equation.params)
        if place < num_carries:
            yield from filter(is_var, [atoms[num_constants + place]])
    elif name == "while":
        first = equation.params["cond_nconsts"] + equation.params["body_nconsts"]
        yield from filter(is_var, [atoms[first + place]])
    elif name in ("cond", "jit", "pjit"):
        given = atoms[1:] if name == "cond" else atoms
        for body in sub_jaxprs(equation):
            distances = UpdateDistances(body)
            known = [arg for arg in range(len(given)) if distances.between(arg, place) is not None]
            yield from filter(is_var, [given[arg] for arg in known])
