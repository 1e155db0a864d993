"""A traced function with its nested `jit`s opened, so that its layers stand in one list of equations.

Functions with derivatives of their own (`custom_jvp`, `custom_vjp`), checkpoints and control flow stay as they are:
the function is differentiated afterwards.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.extend import core

from jaxquard.ir.jaxpr_tools import Equation, Var, new_var, substitute
from jaxquard.ir.source import is_users_file
from jaxquard.pipeline.layers.layer_path import Components, scopes_of

_JITS = frozenset(["jit", "pjit"])
_TRACED_HERE = os.path.join("pipeline", "layers", "mark_layers.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatFunction:
    """The equations of a traced function.

    Attributes:
        inputs: one for each leaf of the arguments.
        paths: the path of each leaf, and before it the argument's name or position.
        constants: the arrays that it closes over, by variable.
        calls: for each equation, the `jit`s around it, the innermost first.
    """

    inputs: tuple[Var, ...]
    paths: tuple[Components, ...]
    equations: tuple[Equation, ...] = field(repr=False)
    outputs: tuple[Any, ...]
    constants: dict[Var, Any] = field(repr=False)
    calls: tuple[tuple[Equation, ...], ...] = field(repr=False)

    def lines(self, position: int) -> Iterator[str]:
        """Yields the user's lines that an equation comes from, the innermost first, with the paths of their files."""
        chain = (self.equations[position], *self.calls[position])
        for equation, call in itertools.zip_longest(chain, chain[1:]):
            yield from _lines_inside(equation, call)

    def inner_lines(self, position: int) -> set[str]:
        """Returns the user's lines that the equations inside of one come from, and the lines that called them."""
        nested = {id(equation): equation for _, equation in nested_equations(self.equations[position])}
        return {line for equation in nested.values() for line in _lines_inside(equation, None)}


def flatten_function(closed: core.ClosedJaxpr, paths: Sequence[Components]) -> FlatFunction:
    """Opens the calls of a traced function."""
    constants: dict[Var, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    equations: list[Equation] = []
    calls: list[tuple[Equation, ...]] = []
    renamed: dict[Var, Any] = {}

    def visit(jaxpr: Any, inner: dict[Var, Any], around: tuple[Equation, ...]) -> None:
        for equation in jaxpr.eqns:
            moved = _inside(equation.replace(invars=[substitute(atom, inner) for atom in equation.invars]), around)
            if _is_plain_jit(equation):
                body = equation.params["jaxpr"]
                names = dict(zip(body.jaxpr.invars, moved.invars, strict=True))
                for var, value in zip(body.jaxpr.constvars, body.consts, strict=True):
                    names[var] = new_var(var)
                    constants[names[var]] = value
                visit(body.jaxpr, names, (moved, *around))
                inner.update(
                    (var, substitute(atom, names))
                    for var, atom in zip(equation.outvars, body.jaxpr.outvars, strict=True)
                )
                continue
            outputs = [new_var(var) for var in equation.outvars]
            inner.update(zip(equation.outvars, outputs, strict=True))
            equations.append(moved.replace(outvars=outputs))
            calls.append(around)

    visit(closed.jaxpr, renamed, ())
    return FlatFunction(
        inputs=tuple(closed.jaxpr.invars),
        paths=tuple(paths),
        equations=tuple(equations),
        outputs=tuple(substitute(atom, renamed) for atom in closed.jaxpr.outvars),
        constants=constants,
        calls=tuple(calls),
    )


def nested_equations(equation: Equation) -> Iterator[tuple[Components, Equation]]:
    """Yields the equations inside one that has bodies, and the scopes of each; bodies of bodies included."""
    for body in _bodies(equation):
        for nested in body.eqns:
            scopes = (*scopes_of(equation), *scopes_of(nested))
            inner = list(nested_equations(nested))
            if inner:
                yield from (((*scopes_of(equation), *path), deeper) for path, deeper in inner)
            else:
                yield scopes, nested


def has_body(equation: Equation) -> bool:
    """Returns True for an equation with equations inside."""
    return any(True for _ in _bodies(equation))


def _bodies(equation: Equation) -> Iterator[Any]:
    for value in equation.params.values():
        for candidate in value if isinstance(value, tuple | list) else (value,):
            body = getattr(candidate, "jaxpr", candidate)
            if hasattr(body, "eqns"):
                yield body


def _is_plain_jit(equation: Equation) -> bool:
    given = (*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ()))
    is_plain = all(type(sharding).__name__ == "UnspecifiedValue" for sharding in given)
    return equation.primitive.name in _JITS and is_plain


def _inside(equation: Equation, around: tuple[Equation, ...]) -> Equation:
    if not around:
        return equation
    names = around[0].source_info.name_stack + equation.source_info.name_stack
    return equation.replace(source_info=equation.source_info.replace(name_stack=names))


def _lines_inside(equation: Equation, call: Equation | None) -> Iterator[str]:
    """Yields the lines of an equation inside of a `jit`: it may have been traced for a call elsewhere."""
    traceback: Any = equation.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        if frame.file_name.endswith(_TRACED_HERE):
            return
        if is_users_file(frame.file_name):
            yield f"{os.path.abspath(frame.file_name)}:{frame.line_num}"
        if call is not None and frame.function_name == call.params["name"]:
            return
