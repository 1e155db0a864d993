"""An equation of the whole batch beside the same one of a part of it, and what rules ask of the two."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxquard.ir.jaxpr_tools import Equation
from jaxquard.ir.rows.known import Known, law_of
from jaxquard.ir.rows.law import Law, Pieces, mixed, row_dim

State = Law | Known | Pieces
"""All that is known of a pair of values."""

Shape = tuple[int, ...]
RelateBodies = Callable[[Any, Any, Sequence[State]], list[State]]
"""Relates the outputs of two bodies, given the states of their inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEquation:
    """The same operation on the whole batch and on a part.

    Attributes:
        draws_rows: random numbers that are drawn from one key for all rows count as rows of their own.
        relate: looks at bodies.
    """

    whole: Equation
    part: Equation
    num_parts: int
    draws_rows: bool
    relate: RelateBodies

    @property
    def name(self) -> str:
        return self.whole.primitive.name

    def in_shapes(self, position: int) -> tuple[Shape, Shape]:
        return self.whole.invars[position].aval.shape, self.part.invars[position].aval.shape

    def out_shapes(self, position: int = 0) -> tuple[Shape, Shape]:
        return self.whole.outvars[position].aval.shape, self.part.outvars[position].aval.shape

    def has_same_out_shapes(self, position: int = 0) -> bool:
        whole, part = self.out_shapes(position)
        return whole == part

    def out_row_dim(self, position: int = 0) -> int | None:
        """Returns the dim of an output that has the rows, if one has."""
        return row_dim(*self.out_shapes(position), self.num_parts)

    def law(self, position: int, state: State) -> Law:
        """Returns the law of an input."""
        if isinstance(state, Law):
            return state
        return self.law_of_shapes(state, self.in_shapes(position))

    def law_of_shapes(self, state: State, shapes: tuple[Shape, Shape]) -> Law:
        """Returns the law of a value of these shapes."""
        if isinstance(state, Law):
            return state
        if isinstance(state, Pieces):
            return self.mixed("computes with the position of a row in its batch")
        return law_of(state, shapes, self.num_parts, self.whole)

    def laws(self, states: Sequence[State]) -> list[Law]:
        return [self.law(position, state) for position, state in enumerate(states)]

    def same_params(self, *names: str) -> bool:
        """Returns true if parameters, all or some, are equal in both."""
        wanted = names or tuple(self.whole.params)
        return all(_is_equal(self.whole.params.get(name), self.part.params.get(name)) for name in wanted)

    def mixed(self, reason: str) -> Law:
        return mixed(self.whole, reason)


def _is_equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        if bool(one == other):
            return True
    except (TypeError, ValueError):
        pass
    # Bodies and functions that two traces made anew print alike.
    return type(one) is type(other) and not callable(one) and str(one) == str(other)


Rule = Callable[[PairedEquation, list[State]], list[State]]
"""A rule returns the state of every output. It gets states, of which none is mixed."""

LawRule = Callable[[PairedEquation, list[Law]], Law]


def of_laws(rule: LawRule) -> Rule:
    """Makes a rule of one that wants laws, of which none is mixed, and has one law for all outputs."""

    def run(pair: PairedEquation, states: list[State]) -> list[State]:
        laws = pair.laws(states)
        unknown = next((law for law in laws if law.is_mixed), None)
        found = rule(pair, laws) if unknown is None else unknown
        return [found] * len(pair.whole.outvars)

    return run


def rules_for(names: str, rule: Rule) -> dict[str, Rule]:
    """The same rule for primitives whose names are given in one text."""
    return dict.fromkeys(names.split(), rule)
