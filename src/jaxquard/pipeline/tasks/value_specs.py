"""The specs of all values that cross between tasks of a step."""

from collections.abc import Sequence

from jaxquard.ir.jaxpr_tools import Equation, Var, is_var
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import loop_p
from jaxquard.pipeline.specs.infer_specs import Spec, SpecRules
from jaxquard.pipeline.specs.loop_specs import follow_loop_results
from jaxquard.pipeline.tasks.task_code import Carried, Local, Outer, Total, Value


def value_specs(
    step: Step,
    *,
    input_specs: Sequence[Spec],
    result_specs: Sequence[Spec | None],
    rules: SpecRules,
) -> dict[Value, Spec]:
    """Follows the specs of a staged step's inputs through it.

    Args:
        step: the step.
        input_specs: for each input of the jaxpr.
        result_specs: for each output of the jaxpr, the spec that is asked for, if any.
        rules: for an actor's mesh.
    """
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


def _follow_loop(
    equation: Equation, number: int, rules: SpecRules, outer: dict[Var, Spec], values: dict[Value, Spec]
) -> None:
    inside = follow_loop_results(equation, rules, outer)
    values.update((Local(number, var), spec) for var, spec in inside.items())
    for target, result in enumerate(equation.outvars):
        is_carried = equation.params["loop"].reductions[target].carried is not None
        values[(Carried if is_carried else Total)(number, target)] = outer[result]
