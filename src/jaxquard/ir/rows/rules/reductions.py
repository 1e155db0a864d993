"""Reductions: a sum over rows is a sum over parts, a maximum over rows one over parts; all else needs whole rows."""

from collections.abc import Sequence

from jaxquard.ir.rows.law import SAME, Kind, Law, rows, sums
from jaxquard.ir.rows.paired import PairedEquation, Rule, of_laws, rules_for

_REDUCES = "reduces over the rows of the batch by something other than a sum"


def without_dims(pair: PairedEquation, law: Law, dims: Sequence[int]) -> Law | None:
    """Returns where the rows are if these dims go; None if theirs is one of them."""
    if law.kind is not Kind.ROWS:
        return law
    if law.dim in dims:
        return None
    return rows(law.dim - sum(dim < law.dim for dim in dims), scale=law.scale, outer=law.outer, order=law.order)


def _reduce_sum(pair: PairedEquation, laws: list[Law]) -> Law:
    (law,) = laws
    axes = pair.whole.params["axes"]
    if law.kind in (Kind.MAX, Kind.TOTAL):
        return pair.mixed("computes with the maximum over all rows" if law.kind is Kind.MAX else _REDUCES)
    if law.kind is Kind.ROWS and law.outer is None and law.dim in axes:
        return SAME.scaled(law.scale * pair.num_parts)
    found = without_dims(pair, law, axes)
    return sums(law.scale) if found is None else found


def _reduce_max(pair: PairedEquation, laws: list[Law]) -> Law:
    """Also `any`, the larger of truths."""
    (law,) = laws
    found = without_dims(pair, law, pair.whole.params["axes"])
    if found is None and law.outer is None:
        found = Law(kind=Kind.SAME, scale=law.scale)
    is_larger = pair.name == "reduce_max" or pair.whole.invars[0].aval.dtype.kind == "b"
    if is_larger and (law.kind is Kind.MAX or (found is None and law.has_scale(1.0))):
        return Law(kind=Kind.MAX)
    return _of_values(pair, found)


def _of_values(pair: PairedEquation, found: Law | None) -> Law:
    """Returns the law if the numbers are read as they are, or as positive multiples."""
    if found is None or found.kind not in (Kind.SAME, Kind.ROWS, Kind.ZERO) or found.scale <= 0:
        return pair.mixed(_REDUCES)
    return found


def _reduce_extreme(pair: PairedEquation, laws: list[Law]) -> Law:
    return _of_values(pair, without_dims(pair, laws[0], pair.whole.params["axes"]))


def _position_of_extreme(pair: PairedEquation, laws: list[Law]) -> Law:
    found = _reduce_extreme(pair, laws)
    return found if found.is_mixed or found.kind is Kind.ZERO else found.scaled(1 / found.scale)


def _reduce_values(pair: PairedEquation, laws: list[Law]) -> Law:
    found = _reduce_extreme(pair, laws)
    is_plain = found.is_mixed or found.has_scale(1.0)
    return found if is_plain else pair.mixed(_REDUCES)


def _reduce(pair: PairedEquation, laws: list[Law]) -> Law:
    """The general one: operands, then a first value for each."""
    count = len(pair.whole.outvars)
    found = {without_dims(pair, law, pair.whole.params["dimensions"]) for law in laws[:count]}
    firsts = all(law.kind in (Kind.SAME, Kind.ZERO) and law.has_scale(1.0) for law in laws[count:])
    if len(found) != 1 or not firsts or not pair.same_params():
        return pair.mixed(_REDUCES)
    law = _of_values(pair, found.pop())
    return law if law.is_mixed or (law.kind in (Kind.SAME, Kind.ROWS) and law.has_scale(1.0)) else pair.mixed(_REDUCES)


RULES: dict[str, Rule] = (
    {"reduce_sum": of_laws(_reduce_sum), "reduce": of_laws(_reduce), "reduce_min": of_laws(_reduce_extreme)}
    | rules_for("reduce_max reduce_or", of_laws(_reduce_max))
    | rules_for("argmax argmin", of_laws(_position_of_extreme))
    | rules_for("reduce_prod reduce_and reduce_xor", of_laws(_reduce_values))
)
