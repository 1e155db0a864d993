"""The specs of a step's arguments and results: those that the user gave, and those that follow from them.

    mu (no spec) ; w (sharded over data) ; ... ; v = add w u      (u computed elementwise from mu)
    =>
    mu is sharded over data

The moments of an optimizer meet their parameter only in elementwise operations, and any other sharding
would be changed in every step. Values of one shape that elementwise operations connect form a
group; the first argument of the group that has a spec gives it to those that have none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.ir.jaxpr_tools import Var, is_var
from jaxquard.ir.operations import ELEMENTWISE
from jaxquard.ir.step import Step
from jaxquard.pipeline.specs.infer_specs import Spec, SpecRules


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentSpecs:
    """The specs at the ends of a step.

    Attributes:
        inputs: for each input of the jaxpr.
        results: for each output of the jaxpr; None where any spec will do.
    """

    inputs: tuple[Spec, ...]
    results: tuple[Spec | None, ...]


def argument_specs(
    step: Step,
    *,
    arg_specs: Sequence[Spec | None],
    result_specs: Sequence[Spec | None],
    result_of_input: Sequence[int | None],
    rules: SpecRules,
) -> ArgumentSpecs:
    """Returns the specs of the jaxpr's inputs and outputs; a part is sharded as the whole would be.

    Args:
        step: the step.
        arg_specs: for each flat argument, or empty; None leaves it to us.
        result_specs: for each flat result, or empty; None leaves it to us.
        result_of_input: for each input of the jaxpr, the output that takes its place in the next step.
        rules: for an actor's mesh.
    """
    asked = _per_part(step.arg_parts, arg_specs or [()] * len(step.arg_parts))
    constants = [()] * (len(step.jaxpr.invars) - len(asked))
    given = [*asked, *constants]
    inputs = [
        found if spec is not None else rules.fit_type(found, var.aval)
        for var, spec, found in zip(step.jaxpr.invars, given, partner_specs(step, input_specs=given), strict=True)
    ]
    results = _per_part(step.result_parts, result_specs or [None] * len(step.result_parts))
    for position, result in enumerate(result_of_input):
        if result is not None and results[result] is None:
            results[result] = rules.fit_type(inputs[position], step.jaxpr.outvars[result].aval)
    return ArgumentSpecs(inputs=tuple(inputs), results=tuple(results))


def _per_part(parts: Sequence[tuple[int, ...]], specs: Sequence[Spec | None]) -> list[Spec | None]:
    return [spec for sizes, spec in zip(parts, specs, strict=True) for _ in range(max(1, len(sizes)))]


def partner_specs(step: Step, *, input_specs: Sequence[Spec | None]) -> list[Spec]:
    """Returns a spec for each input of the jaxpr; one without a partner is replicated."""
    parent: dict[Var, Var] = {}

    def root(var: Var) -> Var:
        while parent.get(var, var) is not var:
            parent[var] = parent.get(parent[var], parent[var])
            var = parent[var]
        return var

    for equation in step.jaxpr.eqns:
        if equation.primitive.name not in ELEMENTWISE or not equation.outvars[0].aval.shape:
            continue
        first = equation.outvars[0]
        for atom in equation.invars:
            if is_var(atom) and atom.aval.shape == first.aval.shape:
                parent[root(atom)] = root(first)
    given: dict[Var, Spec] = {}
    for var, spec in zip(step.jaxpr.invars, input_specs, strict=True):
        if spec is not None:
            given.setdefault(root(var), spec)
    return [
        given.get(root(var), ()) if spec is None else spec
        for var, spec in zip(step.jaxpr.invars, input_specs, strict=True)
    ]
