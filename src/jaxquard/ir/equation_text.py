"""Equations of a jaxpr as text, one a line, in the words of the program's text.

    c:float32[2,8] = dot_general[dimension_numbers=(([1], [0]), ([], []))] a b

Variables are named in the order in which they are first written: `a`, `b`, ..., `z`, `ba`, `bb`. Of the
parameters, those that say nothing more (a default, or what the result's type shows) are left out, and a
jaxpr among them is only counted: the text is for people, and does not parse back.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.jaxpr_tools import Equation, Var, is_var

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LONGEST_PARAM = 60
# Shown by the result's type, or nothing that a reader of a step would look for.
_HIDDEN_PARAMS = frozenset(
    "new_dtype preferred_element_type weak_type shape new_sizes out_sharding context_mesh ctx_mesh layout "
    "unconstrained_dims num_consts symbolic_zeros jvp_jaxpr_fun fwd_jaxpr_thunk bwd out_trees prevent_cse "
    "differentiated policy inline donated_invars keep_unused in_shardings out_shardings in_layouts "
    "out_layouts compiler_options_kvs mesh newly_manual_axes check_vma".split()
)


class Names:
    """Names of variables, given in the order of first use."""

    def __init__(self) -> None:
        self._names: dict[Var, str] = {}
        self._count = 0

    def alias(self, var: Var, name: str) -> None:
        """Gives a variable a name that another one has already."""
        self._names[var] = name

    def __getitem__(self, atom: Any) -> str:
        """The name of a variable, or the value of a literal."""
        if not is_var(atom):
            return _write_literal(atom)
        if atom not in self._names:
            self._names[atom] = _name(self._count)
            self._count += 1
        return self._names[atom]


def write_type(aval: Any) -> str:
    """`float32[2,8]`."""
    if not hasattr(aval, "shape"):
        return str(aval)
    return str(ArrayType(dtype=str(aval.dtype), shape=tuple(aval.shape)))


def write_equation(equation: Equation, names: Names) -> str:
    """Returns an equation as one line."""
    inputs = "".join(f" {names[atom]}" for atom in equation.invars)
    operation = f"{equation.primitive.name}{_write_params(equation)}{inputs}"
    return f"{write_definitions(equation.outvars, names)} = {operation}"


def write_definitions(variables: Sequence[Var], names: Names) -> str:
    """Returns the left side of an equation: `c:float32[2,8]`."""
    return ", ".join(f"{names[var]}:{write_type(var.aval)}" for var in variables)


def _name(number: int) -> str:
    name = _LETTERS[number % 26]
    while number := number // 26:
        name = _LETTERS[number % 26] + name
    return name


def _write_literal(atom: Any) -> str:
    value = atom.val
    return str(value) if np.shape(value) == () else write_type(atom.aval)


def _write_params(equation: Equation) -> str:
    shown = [
        f"{name}={_write_param(value)}"
        for name, value in equation.params.items()
        if name not in _HIDDEN_PARAMS
        and not _says_nothing(value, in_constraint=equation.primitive.name == "sharding_constraint")
    ]
    return f"[{' '.join(shown)}]" if shown else ""


def _says_nothing(value: Any, *, in_constraint: bool = False) -> bool:
    """Returns True for None and False, and for a sharding that replicates, unless the equation is a constraint."""
    if isinstance(value, jax.sharding.NamedSharding):
        return not in_constraint and all(axes is None for axes in value.spec)
    if isinstance(value, tuple | list | frozenset | dict):
        return all(map(_says_nothing, value))
    return value is None or value is False


def _write_param(value: Any) -> str:
    write = next((write for type_, write in _WRITERS if isinstance(value, type_)), str)
    text = " ".join(write(value).split())
    return text if len(text) <= _LONGEST_PARAM else text[: _LONGEST_PARAM - 3] + "..."


def _write_tuple(value: tuple[Any, ...]) -> str:
    """As JAX prints them: a tuple of numbers within tuples is a list."""
    inner = [
        f"[{', '.join(map(str, item))}]"
        if isinstance(item, tuple) and all(isinstance(number, int) for number in item)
        else _write_param(item)
        for item in value
    ]
    return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"


def _write_jaxpr(value: Any) -> str:
    jaxpr = value.jaxpr if isinstance(value, core.ClosedJaxpr) else value
    count = len(jaxpr.eqns)
    return f"{{{count} equation{'' if count == 1 else 's'}}}"


_WRITERS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    ((core.ClosedJaxpr, core.Jaxpr), _write_jaxpr),
    (enum.Enum, lambda value: str(value.value)),
    (jax.sharding.NamedSharding, lambda value: str(value.spec)),
    (tuple, _write_tuple),
)
