"""Operations that run their body once: what holds of the body holds of them."""

from jaxquard.ir.dependence.relation import Relation
from jaxquard.ir.dependence.rule import BodyRule, RelateBody, for_each
from jaxquard.ir.jaxpr_tools import Equation


def _call(equation: Equation, relate_body: RelateBody) -> Relation:
    params = equation.params
    return relate_body(params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"])


_CALLS = """
    call checkpoint closed_call composite core_call custom_jvp_call custom_vjp_call eval_jaxpr jit pjit remat remat2
"""

RULES: dict[str, BodyRule] = for_each(_CALLS, _call)
