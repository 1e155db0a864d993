"""Rules: functions from an equation to its relation.

A rule may rely on the equation's inputs and outputs being arrays (PRNG keys count as such). A rule of
an operation with a body is given a function that relates the body's outputs to its inputs.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from jaxquard.ir.dependence.relation import Relation
from jaxquard.ir.jaxpr_tools import Equation

Rule = Callable[[Equation], Relation]
RelateBody = Callable[[Any], Relation]
BodyRule = Callable[[Equation, RelateBody], Relation]

AnyRule = TypeVar("AnyRule", Rule, BodyRule)


def for_each(names: str, rule: AnyRule) -> dict[str, AnyRule]:
    """The same rule for primitives whose names are given in one text."""
    return dict.fromkeys(names.split(), rule)


def in_shapes(equation: Equation) -> list[tuple[int, ...]]:
    """The shapes of an equation's inputs."""
    return [atom.aval.shape for atom in equation.invars]


def out_shapes(equation: Equation) -> list[tuple[int, ...]]:
    """The shapes of an equation's outputs."""
    return [var.aval.shape for var in equation.outvars]
