"""Opens nested calls, so that every operation and mark of the step stands in one list.

    b = jit[jaxpr={ lambda ; c. let d = pipeline_yield c in (d,) }] a
    =>
    b = pipeline_yield a

A mark that still stands inside another equation afterwards (a scan, a cond, a while, a
checkpoint) cannot end a stage: the pass refuses it and says how to move it. Calls that carry shardings
stay as they are, unless they hold a mark. `ir.inline_calls` opens the calls; marks and loops are known here alone.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jaxquard.errors import MarkError
from jaxquard.ir.inline_calls import CallOpener
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, close, make_jaxpr, new_var, prune, sub_jaxprs
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import loop_p
from jaxquard.pipeline.marks import mark_p

_CURES = {
    "scan": "Split the scan with jaxquard.pipeline_scan, or write the layers as a Python loop.",
    "while": "Write the loop in Python, so that each mark is traced once.",
    "cond": "Put the mark before or after the cond.",
    "remat2": "Put the mark outside: checkpoint what is inside each stage, and mark between them.",
    "checkpoint": "Put the mark outside: checkpoint what is inside each stage, and mark between them.",
    "accumulate_grads": "A loop inside a loop cannot be scheduled: use one loop.",
}
_NAMES = {"scan": "lax.scan", "while": "lax.while_loop", "cond": "lax.cond", "remat2": "jax.checkpoint"}


def inline_calls(step: Step) -> Step:
    """Opens the calls of the step and of its loops' bodies."""
    constants: dict[Var, Any] = {}
    opened = CallOpener(constants=constants, must_open=_has_mark).open_all(step.jaxpr)
    equations = [_inline_loop(equation, constants) for equation in opened.eqns]
    _refuse_hidden_marks(equations)
    jaxpr = make_jaxpr([*opened.invars, *constants], equations, opened.outvars)
    return replace(step, jaxpr=prune(jaxpr), constants=(*step.constants, *constants.values()))


def _inline_loop(equation: Equation, constants: dict[Var, Any]) -> Equation:
    """Opens a loop's body; arrays that its calls closed over become constants of the loop."""
    if equation.primitive is not loop_p:
        return equation
    found: dict[Var, Any] = {}
    opener = CallOpener(constants=found, must_open=_has_mark)
    body = opener.open_all(equation.params["body"].jaxpr)
    loop = equation.params["loop"]
    outer = [new_var(var) for var in found]
    constants.update(zip(outer, found.values(), strict=True))
    jaxpr = prune(make_jaxpr([*found, *body.invars], body.eqns, body.outvars))
    # Hidden ones first: gradients of a linear loss need its forward only where a checkpoint recomputes it.
    _refuse_hidden_marks(jaxpr.eqns)
    _refuse_unused_marks(body, jaxpr)
    loop = replace(loop, num_constants=loop.num_constants + len(found))
    return equation.replace(invars=[*outer, *equation.invars], params={"body": close(jaxpr), "loop": loop})


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
