"""The specs of all values that cross between tasks of a step."""

from collections.abc import Mapping, Sequence

from jaxquard.ir.jaxpr_tools import Equation, Var, is_var
from jaxquard.ir.step import Step
from jaxquard.pipeline.infer_specs import Spec, SpecRules
from jaxquard.pipeline.loop import Operation, loop_p
from jaxquard.pipeline.task_code import Local, Outer, Total, Value


def value_specs(
    step: Step,
    *,
    input_specs: Sequence[Spec],
    result_specs: Sequence[Spec | None],
    axis_sizes: Mapping[str, int],
) -> dict[Value, Spec]:
    """Follows the specs of a staged step's inputs through it.

    Args:
        step: the step.
        input_specs: for each input of the jaxpr.
        result_specs: for each output of the jaxpr, the spec that is asked for, if any.
        axis_sizes: the axes of an actor's mesh.
    """
    rules = SpecRules(axis_sizes)
    outer: dict[Var, Spec] = {
        var: rules.fit(spec, var.aval.shape) for var, spec in zip(step.jaxpr.invars, input_specs, strict=True)
    }
    values: dict[Value, Spec] = {}
    number = 0
    for equation in step.jaxpr.eqns:
        if equation.primitive is loop_p:
            _follow_loop(equation, number, rules, outer, values)
            number += 1
        else:
            rules.follow([equation], outer)
    for atom, spec in zip(step.jaxpr.outvars, result_specs, strict=True):
        if spec is not None and is_var(atom):
            outer[atom] = rules.fit(spec, atom.aval.shape)
    values.update((Outer(var), spec) for var, spec in outer.items())
    return {value: spec for value, spec in values.items() if any(spec)}


def body_specs(equation: Equation, rules: SpecRules, outer: Mapping[Var, Spec]) -> dict[Var, Spec]:
    """The specs of the values of a loop's body."""
    body, loop = equation.params["body"].jaxpr, equation.params["loop"]
    inside: dict[Var, Spec] = {}
    for position, (var, atom) in enumerate(zip(body.invars, equation.invars, strict=True)):
        spec = outer.get(atom, ()) if is_var(atom) else ()
        inside[var] = spec if position < loop.num_constants else spec[1:]
    rules.follow(body.eqns, inside)
    return inside


def follow_loop_results(equation: Equation, rules: SpecRules, outer: dict[Var, Spec]) -> dict[Var, Spec]:
    """Adds the specs of a loop's results to `outer`; returns those of its body's values."""
    body, loop = equation.params["body"].jaxpr, equation.params["loop"]
    inside = body_specs(equation, rules, outer)
    for atom, target in zip(body.outvars, loop.targets, strict=True):
        spec = inside.get(atom, ()) if is_var(atom) else ()
        if loop.reductions[target].operation is Operation.STACK:
            spec = ((), *spec)
        result = equation.outvars[target]
        outer[result] = rules.fit(spec, result.aval.shape)
    return inside


def _follow_loop(
    equation: Equation, number: int, rules: SpecRules, outer: dict[Var, Spec], values: dict[Value, Spec]
) -> None:
    inside = follow_loop_results(equation, rules, outer)
    values.update((Local(number, var), spec) for var, spec in inside.items())
    for target, result in enumerate(equation.outvars):
        values[Total(number, target)] = outer[result]
