"""Checks that a jaxpr is well formed: every variable is defined once, before its uses."""

from collections.abc import Iterable

from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Literal, Var


def check_jaxpr(jaxpr: Jaxpr) -> None:
    """Raises AssertionError, naming the primitive, for the first variable that breaks the rule."""
    defined: set[Var] = set()
    _define([*jaxpr.constvars, *jaxpr.invars], defined, None)
    for equation in jaxpr.eqns:
        for atom in equation.invars:
            if not isinstance(atom, Literal) and atom not in defined:
                raise AssertionError(f"{_describe(equation)} uses a variable that nothing before it defines")
        _define(equation.outvars, defined, equation)
    for position, atom in enumerate(jaxpr.outvars):
        if not isinstance(atom, Literal) and atom not in defined:
            raise AssertionError(f"output {position} is a variable that nothing defines")


def _define(variables: list[Var], defined: set[Var], equation: Equation | None) -> None:
    """Adds the outputs of an equation, or the inputs of the jaxpr."""
    before = len(defined)
    defined.update(variables)
    if len(defined) - before != len(variables):
        where = "the inputs define" if equation is None else f"{_describe(equation)} defines"
        raise AssertionError(f"{where} a variable a second time")


def _describe(equation: Equation) -> str:
    return f"a {equation.primitive.name} of type {', '.join(_types(equation.outvars))}"


def _types(variables: Iterable[Var]) -> list[str]:
    return [str(var.aval) for var in variables]
