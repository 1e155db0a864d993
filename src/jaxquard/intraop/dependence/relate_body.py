"""Relates the outputs of a jaxpr to its inputs, equation by equation.

An output dim is linked with an input where all paths between them agree: one path without a link, or
two that end at different dims of the input, leave none; the chunks are the greatest common divisor
over the paths. What a body closed over is whole on each device and asks for nothing.
"""

from collections.abc import Callable, Sequence

from jaxquard.intraop.dependence.link import Links, compose, identity, merge
from jaxquard.intraop.dependence.relation import Relation, Row
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, is_var

Reached = dict[int, Links]
"""For each input that a value depends on, its links with it."""


def relate_body(jaxpr: Jaxpr, relate: Callable[[Equation], Relation]) -> Relation:
    """The relation of a jaxpr's outputs to its inputs, given that of an equation."""
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
