"""Opens nested calls, so that the equations of a jaxpr stand in one list.

    b = jit[jaxpr={ lambda ; c. let d = sin c in (d,) }] a
    =>
    b = sin a

Calls that carry shardings stay as they are, unless the caller says otherwise. Control flow (scan, while, cond) and
checkpoints are no calls: `open_checkpoints` opens the latter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jax.extend import core

from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, close, make_jaxpr, new_var, prune, substitute
from jaxquard.ir.source import source_inside

# Which parameter of a call holds its body.
_BODIES = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


def inline_calls(
    jaxpr: Jaxpr, constants: tuple[Any, ...], *, ignores_shardings: bool = False
) -> tuple[Jaxpr, tuple[Any, ...]]:
    """Opens the calls of a jaxpr; arrays that they closed over become further inputs.

    Args:
        jaxpr: its last inputs are the constants.
        constants: the values of those inputs.
        ignores_shardings: opens calls that carry shardings as well, and drops these.

    Returns:
        The flat jaxpr without equations that nothing needs, and its constants.
    """
    found: dict[Var, Any] = {}
    opened = CallOpener(constants=found, ignores_shardings=ignores_shardings).open_all(jaxpr)
    flat = prune(make_jaxpr([*opened.invars, *found], opened.eqns, opened.outvars))
    return flat, (*constants, *found.values())


def _never(equation: Equation) -> bool:
    del equation
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOpener:
    """Opens the calls of a jaxpr in place.

    Attributes:
        constants: receives the arrays that calls closed over; None: calls that close over arrays stay closed.
        ignores_shardings: opens calls that carry shardings as well.
        must_open: selects calls to open although they carry shardings.
    """

    constants: dict[Var, Any] | None
    ignores_shardings: bool = False
    must_open: Callable[[Equation], bool] = _never

    def open_all(self, jaxpr: Jaxpr) -> Jaxpr:
        """Returns the jaxpr with its calls opened; arrays that they closed over are not among its inputs yet."""
        renamed: dict[Var, Any] = {}
        equations: list[Equation] = []
        for equation in jaxpr.eqns:
            equations.extend(self._open(equation, renamed))
        return make_jaxpr(jaxpr.invars, equations, [substitute(atom, renamed) for atom in jaxpr.outvars])

    def open_body(self, equation: Equation, body: core.ClosedJaxpr, renamed: dict[Var, Any]) -> Iterator[Equation]:
        """Yields the equations of a call's body; `renamed` receives the atom for each output of the call."""
        inner: dict[Var, Any] = dict(zip(body.jaxpr.invars, equation.invars, strict=True))
        for var, value in zip(body.jaxpr.constvars, body.consts, strict=True):
            assert self.constants is not None
            inner[var] = new_var(var)
            self.constants[inner[var]] = value
        for nested in body.jaxpr.eqns:
            for opened in self._open(nested, inner):
                yield opened.replace(source_info=source_inside(equation, opened))
        for var, result in zip(equation.outvars, body.jaxpr.outvars, strict=True):
            renamed[var] = substitute(result, inner)

    def _open(self, equation: Equation, renamed: dict[Var, Any]) -> Iterator[Equation]:
        """Yields the equations that replace one; `renamed` receives the atom that stands for each of its outputs."""
        inputs = [substitute(atom, renamed) for atom in equation.invars]
        body = self._body(equation)
        if body is None:
            outputs = [new_var(var) for var in equation.outvars]
            renamed.update(zip(equation.outvars, outputs, strict=True))
            yield equation.replace(invars=inputs, outvars=outputs)
            return
        yield from self.open_body(equation.replace(invars=inputs), body, renamed)

    def _body(self, equation: Equation) -> core.ClosedJaxpr | None:
        """Returns the body to open, or None for an equation that stays as it is."""
        name = _BODIES.get(equation.primitive.name)
        if name is None or name not in equation.params:
            return None
        specified = (*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ()))
        is_bound = not self.ignores_shardings and any(map(_is_given, specified))
        if is_bound and not self.must_open(equation):
            return None
        body = equation.params[name]
        body = body if isinstance(body, core.ClosedJaxpr) else close(body)
        return None if body.consts and self.constants is None else body


def _is_given(sharding: Any) -> bool:
    return type(sharding).__name__ != "UnspecifiedValue"
