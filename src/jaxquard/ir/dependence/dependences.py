"""Finds the dependences of an equation's output dims on its input dims (CFP, section 3.2, Table 1).

The rules are in `rules`, by primitive name. An equation without one is taken as not partitionable:
every output depends on every input, and nothing is linked. So is one on anything but arrays (a
reference to mutable memory, a token), and a whole body that has such an equation in it, since what a
reference holds travels past the equations' inputs and outputs.

This departs from the paper in form, not in what is found: see `link`.

Relates the outputs of a jaxpr to its inputs, equation by equation.

An output dim is linked with an input where all paths between them agree: one path without a link, or
two that end at different dims of the input, leave none; the chunks are the greatest common divisor
over the paths. What a body closed over is whole on each device and asks for nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax import core

from jaxquard.ir.dependence.link import Links, compose, identity, merge
from jaxquard.ir.dependence.relation import Relation, Row
from jaxquard.ir.dependence.rule_table import BODY_RULES, RULES
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, is_var

Reached = dict[int, Links]
"""For each input that a value depends on, its links with it."""


def relate_body(jaxpr: Jaxpr, relate: Callable[[Equation], Relation]) -> Relation:
    """Returns the relation of a jaxpr's outputs to its inputs, given that of an equation."""
    reached: dict[Var, Reached] = {
        var: {position: identity(var.aval.shape)} for position, var in enumerate(jaxpr.invars)
    }
    for equation in jaxpr.eqns:
        sources = [reached.get(atom, {}) if is_var(atom) else {} for atom in equation.invars]
        for var, row in zip(equation.outvars, relate(equation), strict=True):
            reached[var] = _reach(row, sources)
    ends = [reached.get(atom, {}) if is_var(atom) else {} for atom in jaxpr.outvars]
    return tuple(tuple(end.get(position) for position in range(len(jaxpr.invars))) for end in ends)


def _reach(row: Row, sources: Sequence[Reached]) -> Reached:
    found: Reached = {}
    for dependence, source in zip(row, sources, strict=True):
        if dependence is None:
            continue
        for position, links in source.items():
            path = merge(found.get(position), compose(dependence, links))
            assert path is not None
            found[position] = path
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependences:
    """The dependences of an equation's outputs on its inputs.

    Attributes:
        links: `links[output][input]`, in order of the output's dims. An input without a link for an
            output dim must be whole on each device if that dim is sharded.
        reads: `reads[output][input]`, True if the output depends on the input at all.
        is_known: True if the equation's primitive has a rule. If not, nothing is linked.
        unknown_primitives: names of primitives without a rule, here and in bodies, sorted.
    """

    links: tuple[tuple[Links, ...], ...]
    reads: tuple[tuple[bool, ...], ...]
    is_known: bool
    unknown_primitives: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedBody:
    """The relation of a body, and the primitives in it that have no rule."""

    relation: Relation
    unknown_primitives: frozenset[str]


Memo = dict[Any, RelatedBody]
"""Bodies that were related before. Pass one dict to all calls for a program and each is looked at once."""


def dependences(equation: Equation, memo: Memo | None = None) -> Dependences:
    """Returns the links of each output of an equation with each of its inputs.

    Args:
        equation: an equation of a jaxpr.
        memo: filled with the bodies that the equation has, and read.
    """
    relation, unknown = _relate(equation, {} if memo is None else memo)
    return Dependences(
        links=tuple(tuple(dependence or () for dependence in row) for row in relation),
        reads=tuple(tuple(dependence is not None for dependence in row) for row in relation),
        is_known=_is_known(equation),
        unknown_primitives=tuple(sorted(unknown)),
    )


def _is_known(equation: Equation) -> bool:
    name = equation.primitive.name
    return (name in RULES or name in BODY_RULES) and _has_arrays_alone(equation)


def _has_arrays_alone(equation: Equation) -> bool:
    return all(isinstance(atom.aval, core.ShapedArray) for atom in (*equation.invars, *equation.outvars))


def _relate(equation: Equation, memo: Memo) -> tuple[Relation, frozenset[str]]:
    name = equation.primitive.name
    if not equation.outvars and _has_arrays_alone(equation):
        return (), frozenset()  # It only reports (`jax.debug.print`); nothing follows from it.
    if not _is_known(equation):
        return _opaque(len(equation.outvars), len(equation.invars)), frozenset({name})
    if name in RULES:
        return RULES[name](equation), frozenset()
    unknown: set[str] = set()

    def relate(body: Any) -> Relation:
        found = _related_body(getattr(body, "jaxpr", body), memo)
        unknown.update(found.unknown_primitives)
        return found.relation

    return BODY_RULES[name](equation, relate), frozenset(unknown)


def _related_body(body: Jaxpr, memo: Memo) -> RelatedBody:
    if body not in memo:
        unknown: set[str] = set()

        def relate(equation: Equation) -> Relation:
            relation, names = _relate(equation, memo)
            unknown.update(names)
            return relation

        relation = relate_body(body, relate)
        if not all(map(_has_arrays_alone, body.eqns)):
            relation = _opaque(len(body.outvars), len(body.invars))
        memo[body] = RelatedBody(relation=relation, unknown_primitives=frozenset(unknown))
    return memo[body]


def _opaque(num_outputs: int, num_inputs: int) -> Relation:
    return (((),) * num_inputs,) * num_outputs
