"""Cuts state for which no spec was given as what it is combined with is.

    mu (no spec) ; w (cut over data) ; ... ; v = add w u      (u computed elementwise from mu)
    =>
    mu is cut over data

The moments of an optimizer meet their parameter only in elementwise operations, and any other cut
would be changed in every step. Values of one shape that elementwise operations connect form a
group; the first argument of the group that has a spec gives it to those that have none.
"""

from collections.abc import Sequence

from jaxquard.ir.jaxpr_tools import Var, is_var
from jaxquard.ir.operations import ELEMENTWISE
from jaxquard.ir.step import Step
from jaxquard.pipeline.infer_specs import Spec


def partner_specs(step: Step, *, input_specs: Sequence[Spec | None]) -> list[Spec]:
    """For each input of the jaxpr its spec; what has no partner is whole."""
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
