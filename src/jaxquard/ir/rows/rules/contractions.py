"""Products and convolutions: rows that are contracted on both sides become a sum over parts."""

import math
from collections.abc import Sequence

from jaxquard.ir.rows.law import ZERO, Kind, Law, rows, sums
from jaxquard.ir.rows.paired import PairedEquation, Rule, of_laws

_ALL_PAIRS = "multiplies rows of the batch with other rows of it"
_SUMS = "multiplies a sum over rows with rows"


def _agree(lhs: Law, rhs: Law) -> bool:
    return None in (lhs.outer, rhs.outer) or (lhs.outer, lhs.order) == (rhs.outer, rhs.order)


def _contracted(pair: PairedEquation, lhs: Law, rhs: Law) -> Law:
    """Returns the law of rows that are multiplied one by one, and added up."""
    if not _agree(lhs, rhs):
        return pair.mixed(_ALL_PAIRS)
    if lhs.outer is None and rhs.outer is None:
        return Law(kind=Kind.SAME, scale=lhs.scale * rhs.scale * pair.num_parts)
    return sums(lhs.scale * rhs.scale)


def _dot_general(pair: PairedEquation, laws: list[Law]) -> Law:
    lhs, rhs = laws
    if not pair.same_params("dimension_numbers"):
        return pair.mixed(_ALL_PAIRS)
    without = _without_rows(pair, lhs, rhs)
    if without is not None:
        return without
    (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = pair.whole.params["dimension_numbers"]
    if lhs.kind is Kind.ROWS and rhs.kind is Kind.ROWS:
        for left, right in zip(lhs_contracted, rhs_contracted, strict=True):
            if (lhs.dim, rhs.dim) == (left, right):
                return _contracted(pair, lhs, rhs)
        for place, (left, right) in enumerate(zip(lhs_batch, rhs_batch, strict=True)):
            if (lhs.dim, rhs.dim) == (left, right) and _agree(lhs, rhs):
                concrete = rhs if lhs.outer is None else lhs
                return rows(place, scale=lhs.scale * rhs.scale, outer=concrete.outer, order=concrete.order)
        return pair.mixed(_ALL_PAIRS)
    return _free_rows(pair, lhs, rhs)


def _free_rows(pair: PairedEquation, lhs: Law, rhs: Law) -> Law:
    """Returns the law of rows on one side that stay, where the other is the same for all parts."""
    (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = pair.whole.params["dimension_numbers"]
    has_rows, other = (lhs, rhs) if lhs.kind is Kind.ROWS else (rhs, lhs)
    if other.kind is not Kind.SAME:
        return pair.mixed(_SUMS)
    ranks = [len(pair.in_shapes(position)[0]) for position in (0, 1)]
    lhs_free = [dim for dim in range(ranks[0]) if dim not in (*lhs_contracted, *lhs_batch)]
    rhs_free = [dim for dim in range(ranks[1]) if dim not in (*rhs_contracted, *rhs_batch)]
    free, first = (lhs_free, len(lhs_batch)) if has_rows is lhs else (rhs_free, len(lhs_batch) + len(lhs_free))
    if has_rows.dim not in free:
        return pair.mixed(_ALL_PAIRS)
    place = first + free.index(has_rows.dim)
    return rows(place, scale=lhs.scale * rhs.scale, outer=has_rows.outer, order=has_rows.order)


def _without_rows(pair: PairedEquation, lhs: Law, rhs: Law) -> Law | None:
    """Returns the law of a product of operands without rows; None if one has rows."""
    kinds = {lhs.kind, rhs.kind}
    if Kind.ZERO in kinds:
        return ZERO
    if Kind.ROWS in kinds:
        return None
    if kinds == {Kind.SAME}:
        return Law(kind=Kind.SAME, scale=lhs.scale * rhs.scale)
    if kinds == {Kind.SAME, Kind.SUM}:
        return sums(lhs.scale * rhs.scale)
    return pair.mixed("multiplies sums over rows with each other")


def _convolution(pair: PairedEquation, laws: list[Law]) -> Law:
    lhs, rhs = laws
    if not pair.same_params(*_same_in_convolutions(pair)):
        return pair.mixed(_ALL_PAIRS)
    without = _without_rows(pair, lhs, rhs)
    if without is not None:
        return without
    params = pair.whole.params
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    if lhs.kind is Kind.ROWS and rhs.kind is Kind.ROWS:
        is_contracted = (lhs.dim, rhs.dim) == (numbers.lhs_spec[1], numbers.rhs_spec[1]) and groups == 1
        return _contracted(pair, lhs, rhs) if is_contracted else pair.mixed(_ALL_PAIRS)
    has_rows, other = (lhs, rhs) if lhs.kind is Kind.ROWS else (rhs, lhs)
    if other.kind is not Kind.SAME or has_rows is rhs:
        return pair.mixed(_SUMS)
    if lhs.dim != numbers.lhs_spec[0] or params["batch_group_count"] != 1:
        return pair.mixed(_ALL_PAIRS)
    return rows(numbers.out_spec[0], scale=lhs.scale * rhs.scale, outer=lhs.outer, order=lhs.order)


def _same_in_convolutions(pair: PairedEquation) -> Sequence[str]:
    return [name for name in pair.whole.params if name not in ("preferred_element_type", "precision")]


def _ragged_dot_general(pair: PairedEquation, laws: list[Law]) -> Law:
    """Groups of rows are known at run time only."""
    if all(law.kind is Kind.SAME for law in laws) and pair.same_params():
        return Law(kind=Kind.SAME, scale=math.prod(law.scale for law in laws[:2]))
    return pair.mixed("multiplies groups of rows whose sizes depend on the whole batch")


RULES: dict[str, Rule] = {
    "dot_general": of_laws(_dot_general),
    "ragged_dot_general": of_laws(_ragged_dot_general),
    "conv_general_dilated": of_laws(_convolution),
}
