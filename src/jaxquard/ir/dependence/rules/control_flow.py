"""Operations with bodies: calls, `cond`, `while` and `scan`.

What holds of the body of a call holds of the call. A link of a `cond` must hold in every branch that reads the input,
and the choice is read whole. In a loop, a dim of a carry stays linked if each iteration takes it to itself: one
iteration relates the carries to those before it, and what holds after any number of them is a fixpoint (`repeated`);
constants and scanned inputs enter at some iteration, and reach the end through the rest.
"""

from functools import reduce

from jaxquard._jax_compat import scan_counts
from jaxquard.ir.dependence.link import Dependence, links_of, whole
from jaxquard.ir.dependence.relation import (
    Relation,
    Row,
    columns,
    compose_relations,
    merge_relations,
    merge_rows,
    repeated,
)
from jaxquard.ir.dependence.rule import BodyRule, RelateBody, for_each, in_shapes
from jaxquard.ir.jaxpr_tools import Equation


def _call(equation: Equation, relate_body: RelateBody) -> Relation:
    params = equation.params
    return relate_body(params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"])


def _cond(equation: Equation, relate_body: RelateBody) -> Relation:
    found = reduce(merge_relations, map(relate_body, equation.params["branches"]))
    return tuple(((), *row) for row in found)


def _while(equation: Equation, relate_body: RelateBody) -> Relation:
    """The number of iterations is the same on all devices only if what the condition reads is whole."""
    num_condition, num_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    shapes = in_shapes(equation)[num_condition + num_body :]
    iteration = relate_body(equation.params["body_jaxpr"])
    carried = repeated(columns(iteration, num_body), shapes)
    entered = compose_relations(carried, columns(iteration, 0, num_body), num_inputs=num_body)
    carries = tuple(constants + first for constants, first in zip(entered, carried, strict=True))
    condition = tuple(map(whole, relate_body(equation.params["cond_jaxpr"])[0]))
    num_inputs = num_body + len(shapes)
    (awaited,) = compose_relations((condition[num_condition:],), carries, num_inputs=num_inputs)
    return tuple(condition[:num_condition] + merge_rows(row, awaited) for row in carries)


def _scan(equation: Equation, relate_body: RelateBody) -> Relation:
    """Inputs are constants, first carries and scanned arrays; outputs are last carries and stacked results.

    In the body a scanned or stacked array lacks its first dim, along which it is scanned.
    """
    num_constants, num_carries = scan_counts(equation.params)
    first_scanned, num_inputs = num_constants + num_carries, len(equation.invars)
    iteration = relate_body(equation.params["jaxpr"])
    read_carries = columns(iteration, num_constants, first_scanned)
    entering = tuple(row[:num_constants] + (None,) * num_carries + row[first_scanned:] for row in iteration)
    carried = repeated(read_carries[:num_carries], in_shapes(equation)[num_constants:first_scanned])
    first_carries = tuple((None,) * num_constants + row + (None,) * (num_inputs - first_scanned) for row in carried)
    carries = merge_relations(compose_relations(carried, entering[:num_carries], num_inputs=num_inputs), first_carries)
    through_carries = compose_relations(read_carries[num_carries:], carries, num_inputs=num_inputs)
    results = merge_relations(entering[num_carries:], through_carries)
    is_stateless = [all(read is None for read in row) for row in read_carries[num_carries:]]
    return tuple(_last_carry(row, first_scanned) for row in carries) + tuple(
        _stacked(row, first_scanned, equation.params["length"] if stateless else 1)
        for row, stateless in zip(results, is_stateless, strict=True)
    )


def _last_carry(row: Row, first_scanned: int) -> Row:
    return row[:first_scanned] + tuple(_shifted(dependence, 0, 1) for dependence in row[first_scanned:])


def _stacked(row: Row, first_scanned: int, num_chunks: int) -> Row:
    """A result without a carry behind it can be sharded along the scanned dim, too."""
    along = links_of([(0, 0, num_chunks)])
    scanned = (_shifted(dependence, 1, 1) for dependence in row[first_scanned:])
    return tuple(_shifted(dependence, 1, 0) for dependence in row[:first_scanned]) + tuple(
        None if dependence is None else along + dependence for dependence in scanned
    )


def _shifted(dependence: Dependence, out_by: int, in_by: int) -> Dependence:
    if dependence is None:
        return None
    return links_of((link.out_dim + out_by, link.in_dim + in_by, link.num_chunks) for link in dependence)


_CALLS = """
    call checkpoint closed_call composite core_call custom_jvp_call custom_vjp_call eval_jaxpr jit pjit remat remat2
"""

RULES: dict[str, BodyRule] = for_each(_CALLS, _call) | {"cond": _cond, "while": _while, "scan": _scan}
