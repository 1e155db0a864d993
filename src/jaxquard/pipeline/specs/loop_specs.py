"""Follows specs into the body of a loop, and out of it through its results."""

from collections.abc import Mapping

from jaxquard.ir.jaxpr_tools import Equation, Var, is_var
from jaxquard.pipeline.loop import ReduceOp
from jaxquard.pipeline.specs.infer_specs import Spec, SpecRules


def body_specs(equation: Equation, rules: SpecRules, outer: Mapping[Var, Spec]) -> dict[Var, Spec]:
    """The specs of the values of a loop's body."""
    body, loop = equation.params["body"].jaxpr, equation.params["loop"]
    inside: dict[Var, Spec] = {}
    for position, (var, atom) in enumerate(zip(body.invars, equation.invars, strict=True)):
        spec = outer.get(atom, ()) if is_var(atom) else ()
        inside[var] = spec if position < loop.first_leaf else spec[1:]
    rules.follow(body.eqns, inside)
    return inside


def follow_loop_results(equation: Equation, rules: SpecRules, outer: dict[Var, Spec]) -> dict[Var, Spec]:
    """Adds the specs of a loop's results to `outer`; returns those of its body's values."""
    body, loop = equation.params["body"].jaxpr, equation.params["loop"]
    inside = body_specs(equation, rules, outer)
    for atom, target in zip(body.outvars, loop.targets, strict=True):
        spec = inside.get(atom, ()) if is_var(atom) else ()
        reduction = loop.reductions[target]
        if reduction.op is ReduceOp.STACK:
            spec = ((), *spec)
        if reduction.carried is not None:  # One layout for all microbatches: that of the first.
            spec = inside[body.invars[loop.num_constants + reduction.carried]]
        result = equation.outvars[target]
        outer[result] = rules.fit_type(spec, result.aval)
    return inside
