"""Calls, branches and loops.

A loop of as many iterations in the whole as in a part, over layers or time, keeps for its carries the laws that one
iteration keeps. A loop over rows reads one row in each iteration: what it stacks are rows, and a carry to which each
iteration adds is a sum. A `while` must run as often in the whole as in a part, or have a condition for each row, as
under `vmap`.
"""

from collections.abc import Sequence
from typing import Any

from jaxquard._jax_compat import scan_counts
from jaxquard.ir.rows.law import SAME, ZERO, Kind, Law, constant_rows, is_close, rows, sums
from jaxquard.ir.rows.paired import PairedEquation, Rule, State, rules_for

Bodies = tuple[Any, Any]
"""A body on the whole batch, and on a part."""

_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CARRIES = "carries a value from row to row, and does more than add to it"


def _call(pair: PairedEquation, states: list[State]) -> list[State]:
    name = next((name for name in _BODIES if name in pair.whole.params), None)
    if name is None:
        return [pair.mixed(f"calls {pair.name}, which cannot be read")] * len(pair.whole.outvars)
    return pair.relate(pair.whole.params[name], pair.part.params[name], states)


def _is_same(law: Law) -> bool:
    return law.kind in (Kind.SAME, Kind.ZERO) and law.has_scale(1.0)


def _cond(pair: PairedEquation, states: list[State]) -> list[State]:
    choice, operands = pair.law(0, states[0]), states[1:]
    count = len(pair.whole.outvars)
    if choice.is_mixed or not _is_same(choice):
        return [choice if choice.is_mixed else pair.mixed("chooses a branch by a sum over rows")] * count
    branches = zip(pair.whole.params["branches"], pair.part.params["branches"], strict=True)
    found = [_as_laws(pair, pair.relate(*branch, operands)) for branch in branches]
    return [_join_all(pair, laws) for laws in zip(*found, strict=True)]


def _as_laws(pair: PairedEquation, states: Sequence[State]) -> list[Law]:
    """Returns the laws of a body's outputs, whose types are those of the equation's."""
    return [_law_of_output(pair, position, state) for position, state in enumerate(states)]


def _law_of_output(pair: PairedEquation, position: int, state: State, *, dropped: int = 0) -> Law:
    if isinstance(state, Law):
        return state
    shapes = tuple(shape[dropped:] for shape in pair.out_shapes(position))
    return pair.law_of_shapes(state, (shapes[0], shapes[1]))


def _join(pair: PairedEquation, one: Law, other: Law) -> Law:
    """Returns the law that a value has if it may follow either."""
    if one.is_mixed or other.is_mixed or one == other:
        return one if one.is_mixed or one == other else other
    if Kind.ZERO in (one.kind, other.kind):
        return other if one.kind is Kind.ZERO else one
    kinds = {one.kind, other.kind}
    if (
        kinds == {Kind.ROWS}
        and one.dim == other.dim
        and is_close(one.scale, other.scale)
        and None
        in (
            one.outer,
            other.outer,
        )
    ):
        return other if one.outer is None else one
    if kinds == {Kind.SAME, Kind.SUM}:
        scales = [law.scale if law.kind is Kind.SUM else law.scale / pair.num_parts for law in (one, other)]
        if is_close(*scales):
            return sums(scales[0])
    return pair.mixed("has a value that depends on the rows in two ways")


def _join_all(pair: PairedEquation, laws: Sequence[Law]) -> Law:
    found = laws[0]
    for law in laws[1:]:
        found = _join(pair, found, law)
    return found


def _repeat(pair: PairedEquation, first: list[Law], iterate: "_Iterate") -> list[Law]:
    """Returns the laws that carries have in every iteration."""
    laws = first
    for _ in range(3 * len(first) + 2):
        after = iterate(laws)
        joined = [_join(pair, one, other) for one, other in zip(laws, after, strict=True)]
        if joined == laws:
            return laws
        laws = joined
    return [pair.mixed("carries values through a loop whose rows cannot be followed")] * len(first)


class _Iterate:
    """One iteration: from the laws of carries to those after it, and to what it returns besides."""

    def __init__(self, pair: PairedEquation, bodies: Bodies, before: list[State], after: list[State], count: int):
        self.pair, self.bodies, self.before, self.after, self.count = pair, bodies, before, after, count
        self.results: list[State] = []

    def __call__(self, laws: list[Law]) -> list[Law]:
        states = self.pair.relate(*self.bodies, [*self.before, *laws, *self.after])
        self.results = states[self.count :]
        return [_law_of_output(self.pair, position, state) for position, state in enumerate(states[: self.count])]


def _scan(pair: PairedEquation, states: list[State]) -> list[State]:
    lengths = pair.whole.params["length"], pair.part.params["length"]
    num_constants, num_carries = scan_counts(pair.whole.params)
    first = num_constants + num_carries
    scanned = [pair.law(position, state) for position, state in enumerate(states) if position >= first]
    carries = [pair.law(position, states[position]) for position in range(num_constants, first)]
    constants = list(states[:num_constants])
    if lengths[0] == lengths[1]:
        inside = [_without_first_dim(pair, law) for law in scanned]
        return _scan_alike(pair, constants, carries, inside)
    if lengths[0] == pair.num_parts * lengths[1]:
        return _scan_rows(pair, constants, carries, scanned)
    return [pair.mixed("loops a number of times that depends on the number of rows")] * len(pair.whole.outvars)


def _bodies(pair: PairedEquation) -> Bodies:
    return pair.whole.params["jaxpr"], pair.part.params["jaxpr"]


def _without_first_dim(pair: PairedEquation, law: Law) -> Law:
    if law.kind is not Kind.ROWS:
        return law
    if law.dim == 0:
        return pair.mixed("loops over rows together with another dim")
    return rows(law.dim - 1, scale=law.scale, outer=law.outer, order=law.order)


def _scan_alike(pair: PairedEquation, constants: list[State], carries: list[Law], scanned: list[Law]) -> list[State]:
    iterate = _Iterate(pair, _bodies(pair), constants, list(scanned), len(carries))
    last = _repeat(pair, carries, iterate)
    if any(law.is_mixed for law in last):
        iterate(last)
    results = []
    for place, state in enumerate(iterate.results):
        law = _law_of_output(pair, len(carries) + place, state, dropped=1)
        is_rows = law.kind is Kind.ROWS
        results.append(rows(law.dim + 1, scale=law.scale, outer=law.outer, order=law.order) if is_rows else law)
    return [*last, *results]


def _scan_rows(pair: PairedEquation, constants: list[State], carries: list[Law], scanned: list[Law]) -> list[State]:
    """Each iteration has one row, or more: of all parts, what holds of one holds of any."""
    inside = [_of_one_row(pair, law) for law in scanned]
    first_carry = len(constants)
    is_kept = [_is_kept(pair, first_carry + number, number) for number in range(len(carries))]
    totals = [
        first if kept else Law(kind=Kind.TOTAL, scale=0.0, carry=number)
        for number, (first, kept) in enumerate(zip(carries, is_kept, strict=True))
    ]
    states = pair.relate(*_bodies(pair), [*constants, *totals, *inside])
    found: list[State] = []
    for number, (law, first) in enumerate(zip(_laws_of_one_row(pair, states[: len(carries)]), carries, strict=True)):
        found.append(first if is_kept[number] else _last_total(pair, law, first, number))
    is_varying = any(law.kind is Kind.ROWS and law.outer is not None for law in scanned)
    for law in _laws_of_one_row(pair, states[len(carries) :]):
        if law.is_mixed or law.kind not in (Kind.SAME, Kind.ZERO):
            found.append(law if law.is_mixed else pair.mixed(_CARRIES))
        elif law.kind is Kind.ZERO:
            found.append(ZERO)
        else:
            found.append(rows(0, scale=law.scale) if is_varying else constant_rows(0, law.scale))
    return found


def _is_kept(pair: PairedEquation, position: int, number: int) -> bool:
    """Returns true for a carry that every iteration returns as it is: a constant."""
    bodies = [getattr(body, "jaxpr", body) for body in _bodies(pair)]
    return all(body.outvars[number] is body.invars[position] for body in bodies)


def _laws_of_one_row(pair: PairedEquation, states: Sequence[State]) -> list[Law]:
    """Returns the laws of what a body returns for a row; of known values, only those that are the same."""
    return [
        state if isinstance(state, Law) else SAME if getattr(state, "is_same", False) else pair.mixed(_CARRIES)
        for state in states
    ]


def _of_one_row(pair: PairedEquation, law: Law) -> Law:
    if law.kind is Kind.ZERO or law.is_mixed:
        return law
    if law.kind is Kind.ROWS and law.dim == 0 and law.outer in (None, 1) and law.order is None:
        return SAME.scaled(law.scale)
    return pair.mixed("loops over rows together with another dim")


def _last_total(pair: PairedEquation, law: Law, first: Law, number: int) -> Law:
    if law.is_mixed or law.kind is not Kind.TOTAL or law.carry != number:
        return law if law.is_mixed else pair.mixed(_CARRIES)
    if law.scale == 0 or first.is_mixed:
        return first
    added = sums(law.scale)
    joined = _join(pair, first, added)
    return added if not joined.is_mixed and joined.kind is Kind.SUM else pair.mixed(_CARRIES)


def _while(pair: PairedEquation, states: list[State]) -> list[State]:
    num_condition, num_body = pair.whole.params["cond_nconsts"], pair.whole.params["body_nconsts"]
    first = num_condition + num_body
    carries = [pair.law(position, states[position]) for position in range(first, len(states))]
    bodies = pair.whole.params["body_jaxpr"], pair.part.params["body_jaxpr"]
    iterate = _Iterate(pair, bodies, list(states[num_condition:first]), [], len(carries))
    laws = _repeat(pair, carries, iterate)
    conditions = pair.whole.params["cond_jaxpr"], pair.part.params["cond_jaxpr"]
    (state,) = pair.relate(*conditions, [*states[:num_condition], *laws])
    goes_on = pair.law_of_shapes(state, ((), ()))
    if goes_on.is_mixed:
        return [goes_on] * len(carries)
    if _is_same(goes_on):
        return list(laws)
    if goes_on.kind is not Kind.ROWS or goes_on.dim != 0:
        return [pair.mixed("loops until all rows of the batch agree to stop")] * len(carries)
    return _while_rows(pair, laws, goes_on, iterate)


def _while_rows(pair: PairedEquation, laws: list[Law], goes_on: Law, iterate: "_Iterate") -> list[State]:
    """A `while` under `vmap`: a condition for each row, and a row whose condition is false stays as it is.

    So it makes no difference how often the loop runs for the sake of others.
    """
    wanted = rows(0, outer=goes_on.outer or 1, order=goes_on.order)
    by_row = [wanted if law.kind in (Kind.ROWS, Kind.ZERO) else law for law in laws]
    after = iterate(by_row)
    is_row_by_row = all(
        (law.kind is Kind.ZERO or law == wanted or law == constant_rows(0))
        and (new.kind is Kind.ZERO or new == wanted or new == constant_rows(0))
        for law, new in zip(laws, after, strict=True)
    )
    if is_row_by_row:
        return list(by_row)
    return [pair.mixed("loops until all rows of the batch agree to stop")] * len(laws)


_CALLS = """
    call checkpoint closed_call composite core_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr eval_jaxpr
    jit pjit remat remat2
"""
RULES: dict[str, Rule] = rules_for(_CALLS, _call) | {"cond": _cond, "while": _while, "scan": _scan}
