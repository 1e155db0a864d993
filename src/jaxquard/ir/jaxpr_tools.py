"""Small tools over jaxprs, on public names of `jax.extend.core` only.

The passes hold a jaxpr without constants of its own: an array that a function closed over is an input
like any other, and its value travels beside (`ir.step.Step.constants`). A jaxpr here is therefore
three sequences: inputs, equations, outputs.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend import core

from jaxquard.ir.typed_shardings import abstract_type

if TYPE_CHECKING:
    # What the passes rely on. JAX's own annotations leave out that values have shapes and dtypes.

    class Var:
        """A variable, or a literal, which has a value."""

        aval: Any
        val: Any

    Literal = Var
    Atom = Var

    class Equation:
        """One operation."""

        primitive: core.Primitive
        invars: list[Var]
        outvars: list[Var]
        params: dict[str, Any]
        effects: frozenset[Any]
        source_info: Any
        ctx: Any

        def replace(self, **changes: Any) -> "Equation": ...

    class Jaxpr:
        """Inputs, equations, outputs."""

        invars: list[Var]
        constvars: list[Var]
        eqns: list[Equation]
        outvars: list[Var]
else:
    Jaxpr = core.Jaxpr
    Equation = core.JaxprEqn
    Var = core.Var
    Literal = core.Literal
    Atom = Var | Literal

# The elements of a table that an equation may carry as a literal.
_MOST_IN_LITERAL = 4096


def make_jaxpr(inputs: Sequence[Var], equations: Sequence[Equation], outputs: Sequence[Atom]) -> Jaxpr:
    """A jaxpr of these parts."""
    effects = frozenset().union(*(equation.effects for equation in equations)) if equations else frozenset()
    names = core.DebugInfo("jaxquard", "step", ("",) * len(inputs), ("",) * len(outputs))
    build: Any = core.Jaxpr
    return build((), list(inputs), list(outputs), list(equations), effects, names)


def close(jaxpr: Jaxpr, constants: Sequence[Any] = ()) -> core.ClosedJaxpr:
    """The closed form that `jaxpr_as_fun` takes."""
    build: Any = core.ClosedJaxpr
    return build(jaxpr, list(constants))


def with_constants_as_inputs(closed: Any) -> tuple[Jaxpr, tuple[Any, ...]]:
    """Turns the arrays that a jaxpr closed over into its last inputs, and returns their values."""
    jaxpr = closed.jaxpr
    opened = make_jaxpr([*jaxpr.invars, *jaxpr.constvars], jaxpr.eqns, jaxpr.outvars)
    return opened, tuple(closed.consts)


def new_var(like: Any) -> Var:
    """A fresh variable with the type of an atom, or of an abstract value."""
    build: Any = core.Var
    return build(getattr(like, "aval", like))


def is_var(atom: Any) -> bool:
    """Returns True for a variable, False for a literal."""
    return not isinstance(atom, Literal)


def variables(atoms: Iterable[Any]) -> list[Var]:
    """The atoms that are variables."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def size_bytes(aval: Any) -> int:
    """Bytes of an array of this type; a PRNG key counts as 16."""
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 16)


def substitute(atom: Any, renamed: Mapping[Var, Any]) -> Any:
    """The atom that stands for `atom`."""
    return renamed.get(atom, atom) if is_var(atom) else atom


def rename(equation: Equation, renamed: Mapping[Var, Any]) -> Equation:
    """The equation with other inputs."""
    inputs = [atom if isinstance(atom, Literal) else renamed.get(atom, atom) for atom in equation.invars]
    return equation.replace(invars=inputs)


def copy_equation(equation: Equation, inputs: Sequence[Any]) -> Equation:
    """The same operation on other inputs, with results of its own."""
    return equation.replace(invars=list(inputs), outvars=[new_var(var) for var in equation.outvars])


def definitions(equations: Sequence[Equation]) -> dict[Var, int]:
    """For each variable, the position of the equation that defines it."""
    return {var: position for position, equation in enumerate(equations) for var in equation.outvars}


def users(equations: Sequence[Equation]) -> dict[Var, list[int]]:
    """For each variable, the positions of the equations that use it."""
    found: dict[Var, list[int]] = {}
    for position, equation in enumerate(equations):
        for var in dict.fromkeys(variables(equation.invars)):
            found.setdefault(var, []).append(position)
    return found


def prune(jaxpr: Jaxpr, wanted: Sequence[Any] | None = None) -> Jaxpr:
    """Drops equations that neither an output nor an effect needs; keeps all inputs."""
    outputs = list(jaxpr.outvars if wanted is None else wanted)
    needed = set(variables(outputs))
    kept = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not needed.isdisjoint(equation.outvars):
            kept.append(equation)
            needed.update(variables(equation.invars))
    return make_jaxpr(jaxpr.invars, kept[::-1], outputs)


def splice(fn: Callable[..., Sequence[Any]], inputs: Sequence[Any]) -> tuple[list[Equation], list[Any]]:
    """The equations of a small function applied to atoms, its calls opened, and its results."""
    types = [abstract_type(atom.aval) for atom in inputs]
    return splice_traced(jax.make_jaxpr(lambda *arrays: list(fn(*arrays)))(*types), inputs)


def splice_traced(closed: Any, inputs: Sequence[Any]) -> tuple[list[Equation], list[Any]]:
    """The same for a function that was traced for such inputs before; small tables that it closes over are literals."""
    assert all(constant.size <= _MOST_IN_LITERAL for constant in closed.consts), "it may not close over large arrays"
    equations: list[Equation] = []
    renamed: dict[Var, Any] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    for var, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        renamed[var] = core.Literal(np.asarray(constant), var.aval)
    _splice_into(equations, closed.jaxpr, renamed)
    return equations, [substitute(atom, renamed) for atom in closed.jaxpr.outvars]


def _splice_into(equations: list[Equation], jaxpr: Jaxpr, renamed: dict[Var, Any]) -> None:
    for equation in jaxpr.eqns:
        inputs = [substitute(atom, renamed) for atom in equation.invars]
        if equation.primitive.name in ("jit", "pjit"):
            body = equation.params["jaxpr"].jaxpr
            inner = dict(zip(body.invars, inputs, strict=True))
            _splice_into(equations, body, inner)
            renamed.update(
                (var, substitute(atom, inner)) for var, atom in zip(equation.outvars, body.outvars, strict=True)
            )
            continue
        copied = copy_equation(equation, inputs)
        equations.append(copied)
        renamed.update(zip(equation.outvars, copied.outvars, strict=True))


def sub_jaxprs(equation: Equation) -> list[Jaxpr]:
    """The jaxprs in an equation's parameters."""
    found: list[Any] = []
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                found.append(item.jaxpr if isinstance(item, core.ClosedJaxpr) else item)
    return found


def evaluate(jaxpr: Jaxpr) -> Callable[..., list[Any]]:
    """The jaxpr as a function of its inputs."""
    return core.jaxpr_as_fun(close(jaxpr))


def operation_key(equation: Equation) -> tuple[Any, ...]:
    """A key that two equations share only if they compute the same from the same inputs."""
    inputs = tuple(id(atom) if is_var(atom) else _literal_key(atom.val) for atom in equation.invars)
    types = tuple(_aval_key(var.aval) for var in equation.outvars)
    return equation.primitive.name, inputs, types, _params_key(equation)


def fingerprint(jaxpr: Jaxpr) -> tuple[Any, ...]:
    """A key that two jaxprs share only if they compute the same.

    Variables count by their order of definition; parameters by equality where they can be hashed,
    else by identity.
    """
    numbers: dict[Var, int] = {}

    def number(atom: Any) -> Any:
        if isinstance(atom, Literal):
            return ("literal", _aval_key(atom.aval), _literal_key(atom.val))
        return numbers.setdefault(atom, len(numbers))

    def outputs(equation: Equation) -> tuple[Any, ...]:
        return tuple((number(var), _aval_key(var.aval)) for var in equation.outvars)

    inputs = tuple((number(var), _aval_key(var.aval)) for var in (*jaxpr.constvars, *jaxpr.invars))
    body = tuple(
        (
            equation.primitive.name,
            tuple(map(number, equation.invars)),
            outputs(equation),
            _params_key(equation),
        )
        for equation in jaxpr.eqns
    )
    return inputs, body, tuple(map(number, jaxpr.outvars))


def _aval_key(aval: Any) -> Any:
    shape = getattr(aval, "shape", None)
    return str(aval) if shape is None else (shape, aval.dtype, getattr(aval, "weak_type", False))


def _literal_key(value: Any) -> Any:
    array = np.asarray(value)
    return array.tobytes(), array.dtype, array.shape


def _params_key(equation: Equation) -> tuple[Any, ...]:
    return tuple((name, _param_key(value)) for name, value in sorted(equation.params.items()))


def _param_key(value: Any) -> Any:
    if isinstance(value, core.ClosedJaxpr | core.Jaxpr):
        jaxpr: Any = getattr(value, "jaxpr", value)
        return fingerprint(jaxpr), tuple(id(const) for const in getattr(value, "consts", ()))
    if isinstance(value, tuple | list):
        return tuple(map(_param_key, value))
    try:
        hash(value)
    except TypeError:
        return "identity", id(value)
    return type(value).__name__, value
