"""Opens nested calls, so that every operation and mark of the step stands in one list.

    b = jit[jaxpr={ lambda ; c. let d = pipeline_yield c in (d,) }] a
    =>
    b = pipeline_yield a

A mark that still stands inside another equation afterwards (a scan, a cond, a while, a
checkpoint) cannot end a stage, and is refused with the cure. Calls that carry shardings of their
own stay as they are, unless those are not wanted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from jax.extend import core

from jaxquard.errors import MarkError
from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    close,
    make_jaxpr,
    new_var,
    prune,
    sub_jaxprs,
    substitute,
)
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import loop_p
from jaxquard.pipeline.marks import mark_p

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

_CURES = {
    "scan": "Cut the scan with jaxquard.pipeline_scan, or write the layers as a Python loop.",
    "while": "Write the loop in Python, so that each mark is traced once.",
    "cond": "Put the mark before or after the cond.",
    "remat2": "Put the mark outside: checkpoint what is inside each stage, and mark between them.",
    "checkpoint": "Put the mark outside: checkpoint what is inside each stage, and mark between them.",
    "accumulate_grads": "A loop inside a loop cannot be scheduled: use one loop.",
}
_NAMES = {"scan": "lax.scan", "while": "lax.while_loop", "cond": "lax.cond", "remat2": "jax.checkpoint"}


def inline_calls(step: Step, *, ignores_shardings: bool = False) -> Step:
    """Opens the calls of the step and of its loops' bodies.

    Args:
        ignores_shardings: calls that carry shardings are opened as well, and those are gone.
    """
    constants: dict[Var, Any] = {}
    opened = CallOpener(constants=constants, ignores_shardings=ignores_shardings).open_all(step.jaxpr)
    equations = [_inline_loop(equation, constants, ignores_shardings) for equation in opened.eqns]
    _refuse_hidden_marks(equations)
    jaxpr = make_jaxpr([*opened.invars, *constants], equations, opened.outvars)
    return replace(step, jaxpr=prune(jaxpr), constants=(*step.constants, *constants.values()))


def _inline_loop(equation: Equation, constants: dict[Var, Any], ignores_shardings: bool) -> Equation:
    """Opens a loop's body; arrays that its calls closed over become constants of the loop."""
    if equation.primitive is not loop_p:
        return equation
    found: dict[Var, Any] = {}
    opener = CallOpener(constants=found, ignores_shardings=ignores_shardings)
    body = opener.open_all(equation.params["body"].jaxpr)
    loop = equation.params["loop"]
    outer = [new_var(var) for var in found]
    constants.update(zip(outer, found.values(), strict=True))
    jaxpr = prune(make_jaxpr([*found, *body.invars], body.eqns, body.outvars))
    _refuse_unused_marks(body, jaxpr)
    _refuse_hidden_marks(jaxpr.eqns)
    loop = replace(loop, num_constants=loop.num_constants + len(found))
    return equation.replace(invars=[*outer, *equation.invars], params={"body": close(jaxpr), "loop": loop})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOpener:
    """Opens calls.

    Attributes:
        constants: learns what calls closed over; None: calls that close over arrays stay closed.
        ignores_shardings: calls that carry shardings are opened as well.
    """

    constants: dict[Var, Any] | None
    ignores_shardings: bool = False

    def open_all(self, jaxpr: Jaxpr) -> Jaxpr:
        """The jaxpr with its calls opened; what they closed over is not among its inputs yet."""
        renamed: dict[Var, Any] = {}
        equations: list[Equation] = []
        for equation in jaxpr.eqns:
            equations.extend(self._open(equation, renamed))
        return make_jaxpr(jaxpr.invars, equations, [substitute(atom, renamed) for atom in jaxpr.outvars])

    def open_body(self, equation: Equation, body: core.ClosedJaxpr, renamed: dict[Var, Any]) -> Iterator[Equation]:
        """The equations of a call's body; `renamed` learns what the call's outputs became."""
        inner: dict[Var, Any] = dict(zip(body.jaxpr.invars, equation.invars, strict=True))
        for var, value in zip(body.jaxpr.constvars, body.consts, strict=True):
            assert self.constants is not None
            inner[var] = new_var(var)
            self.constants[inner[var]] = value
        outer_names = equation.source_info.name_stack
        for nested in body.jaxpr.eqns:
            for opened in self._open(nested, inner):
                names = outer_names + opened.source_info.name_stack
                yield opened.replace(source_info=opened.source_info.replace(name_stack=names))
        for var, result in zip(equation.outvars, body.jaxpr.outvars, strict=True):
            renamed[var] = substitute(result, inner)

    def _open(self, equation: Equation, renamed: dict[Var, Any]) -> Iterator[Equation]:
        """The equations that do what one equation does; `renamed` learns what its outputs became."""
        inputs = [substitute(atom, renamed) for atom in equation.invars]
        body = self._body(equation)
        if body is None:
            outputs = [new_var(var) for var in equation.outvars]
            renamed.update(zip(equation.outvars, outputs, strict=True))
            yield equation.replace(invars=inputs, outvars=outputs)
            return
        yield from self.open_body(equation.replace(invars=inputs), body, renamed)

    def _body(self, equation: Equation) -> core.ClosedJaxpr | None:
        """What is to be opened; None for what stays as it is."""
        name = _BODIES.get(equation.primitive.name)
        if name is None or name not in equation.params:
            return None
        specified = (*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ()))
        is_bound = not self.ignores_shardings and any(map(_is_given, specified))
        if is_bound and not _has_mark(equation):
            return None
        body = equation.params[name]
        body = body if isinstance(body, core.ClosedJaxpr) else close(body)
        return None if body.consts and self.constants is None else body


def _is_given(sharding: Any) -> bool:
    return type(sharding).__name__ != "UnspecifiedValue"


def _find(equation: Equation, wanted: Callable[[Equation], bool]) -> Equation | None:
    for jaxpr in sub_jaxprs(equation):
        for nested in jaxpr.eqns:
            found = nested if wanted(nested) else _find(nested, wanted)
            if found is not None:
                return found
    return None


def _has_mark(equation: Equation) -> bool:
    return _find(equation, lambda nested: nested.primitive is mark_p) is not None


def _refuse_unused_marks(before: Jaxpr, after: Jaxpr) -> None:
    """A mark that nothing depends on is a mark whose result was not taken."""
    kept = {equation.params["mark"] for equation in after.eqns if equation.primitive is mark_p}
    for equation in before.eqns:
        if equation.primitive is mark_p and equation.params["mark"] not in kept:
            raise MarkError(
                f"nothing uses the result of the mark at {equation.params['mark'].source}, so it ends no stage. "
                "Go on with what it returns: `h = pipeline_yield(h)`."
            )


def _refuse_hidden_marks(equations: list[Equation]) -> None:
    for equation in equations:
        if equation.primitive is loop_p:
            _refuse_nested_loops(equation)
            continue
        hidden = _find(equation, lambda nested: nested.primitive in (mark_p, loop_p))
        if hidden is None:
            continue
        outside = equation.primitive.name
        name = _NAMES.get(outside, outside)
        cure = _CURES.get(outside, f"Put it outside the {name}.")
        if hidden.primitive is loop_p:
            raise MarkError(
                f"accumulate_grads at {hidden.params['loop'].source} stands inside a {name}, where it cannot "
                "be scheduled. Call it in the step itself."
            )
        raise MarkError(
            f"the mark at {hidden.params['mark'].source} stands inside a {name}, where a stage cannot end. {cure}"
        )


def _refuse_nested_loops(equation: Equation) -> None:
    nested = _find(equation, lambda inner: inner.primitive is loop_p)
    if nested is not None:
        raise MarkError(
            f"accumulate_grads at {nested.params['loop'].source} stands inside another one, at "
            f"{equation.params['loop'].source}. A loop inside a loop cannot be scheduled: use one loop."
        )
