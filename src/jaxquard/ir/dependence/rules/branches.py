"""`cond`: a link must hold in every branch that reads the input, and the choice is read whole."""

from functools import reduce

from jaxquard.ir.dependence.relation import Relation, merge_relations
from jaxquard.ir.dependence.rule import BodyRule, RelateBody
from jaxquard.ir.jaxpr_tools import Equation


def _cond(equation: Equation, relate_body: RelateBody) -> Relation:
    found = reduce(merge_relations, map(relate_body, equation.params["branches"]))
    return tuple(((), *row) for row in found)


RULES: dict[str, BodyRule] = {"cond": _cond}
