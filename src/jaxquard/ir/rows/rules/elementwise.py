"""Operations element by element: which keep a sum, which a multiple, and which want the values themselves."""

from collections.abc import Sequence

from jaxquard.ir.rows.law import ZERO, Kind, Law, is_close, rows, sums
from jaxquard.ir.rows.paired import LawRule, PairedEquation, Rule, of_laws, rules_for

_ORDERS = "combines rows with rows in another order, as x with x[::-1]"
_SUMS = "applies a nonlinear function to a sum over rows"
_SIZES = "combines each row with other rows"


def find_frame(pair: PairedEquation, laws: Sequence[Law], *, output: int = 0) -> Law:
    """Returns where the rows of operands of one shape are, scale aside: the law that their combination has."""
    unknown = next((law for law in laws if law.is_mixed), None)
    if unknown is not None:
        return unknown
    if pair.has_same_out_shapes(output):
        return _frame_of_same(pair, laws)
    dim = pair.out_row_dim(output)
    if dim is None:
        return pair.mixed(_SIZES)
    concrete: Law | None = None
    for law in laws:
        if law.kind in (Kind.SAME, Kind.ZERO):
            continue
        if law.kind is not Kind.ROWS or law.dim != dim:
            return pair.mixed(_SUMS if law.kind in (Kind.SUM, Kind.MAX) else "combines rows with other rows")
        if law.outer is None:
            continue
        if concrete is not None and (concrete.outer, concrete.order) != (law.outer, law.order):
            return pair.mixed(_ORDERS)
        concrete = law
    return rows(dim, outer=None) if concrete is None else rows(dim, outer=concrete.outer, order=concrete.order)


def _frame_of_same(pair: PairedEquation, laws: Sequence[Law]) -> Law:
    kinds = {law.kind for law in laws}
    for kind in (Kind.TOTAL, Kind.MAX, Kind.SUM):
        if kind in kinds:
            return next(law for law in laws if law.kind is kind).scaled(1.0)
    if Kind.ROWS in kinds:
        return pair.mixed("combines rows with other rows")
    return Law(kind=Kind.SAME)


def _has_values(laws: Sequence[Law]) -> bool:
    """Returns true if an operation may read all numbers as they are."""
    return all(law.kind in (Kind.SAME, Kind.ROWS, Kind.ZERO) and law.has_scale(1.0) for law in laws)


def any_function(pair: PairedEquation, laws: list[Law]) -> Law:
    """Any function of single elements."""
    if not pair.same_params():
        return pair.mixed("depends on the number of rows")
    frame = find_frame(pair, laws)
    if frame.is_mixed or _has_values(laws):
        return frame
    return pair.mixed(_SUMS if any(law.kind is Kind.SUM for law in laws) else _why_not(laws))


def _why_not(laws: Sequence[Law]) -> str:
    if any(law.kind is Kind.MAX for law in laws):
        return "computes with the maximum over all rows"
    if any(law.kind is Kind.TOTAL for law in laws):
        return "reads, in a loop over rows, the sum of the rows before"
    return "applies a nonlinear function to a number that grows with the rows"


def keep(pair: PairedEquation, laws: list[Law]) -> Law:
    """A linear function of one operand, or of several that are the same multiples; a maximum stays one."""
    found = add_laws(pair, laws)
    return any_function(pair, laws) if found.is_mixed and not laws[0].is_mixed else found


def apply_linear(pair: PairedEquation, laws: list[Law]) -> Law:
    """A linear function of one operand, as a negation is: not of a maximum."""
    if pair.whole.outvars[0].aval.dtype.kind == "u":
        return any_function(pair, laws)
    return pair.mixed("computes with the maximum over all rows") if laws[0].kind is Kind.MAX else keep(pair, laws)


def add_laws(pair: PairedEquation, laws: list[Law]) -> Law:
    """Sums: all operands are multiples by the same number."""
    if len(laws) > 1 and any(law.kind is Kind.MAX for law in laws):
        return pair.mixed("computes with the maximum over all rows")
    frame = find_frame(pair, laws)
    if frame.is_mixed:
        return frame
    others = [law for law in laws if law.kind is not Kind.ZERO]
    if not others:
        return ZERO
    if frame.kind is Kind.TOTAL:
        return pair.mixed(_why_not(laws)) if len(others) > 1 else others[0]
    if frame.kind is Kind.SUM:
        scales = [law.scale if law.kind is Kind.SUM else law.scale / pair.num_parts for law in others]
    else:
        scales = [law.scale for law in others]
    if not all(is_close(scale, scales[0]) for scale in scales):
        if frame.kind is Kind.SUM:
            return pair.mixed("adds a term without rows to a sum over rows, which each microbatch would add again")
        return pair.mixed("adds numbers that grow with the number of rows to others that do not")
    return Law(
        kind=frame.kind,
        scale=scales[0],
        dim=frame.dim,
        outer=frame.outer,
        order=frame.order,
    )


def accumulate(pair: PairedEquation, laws: list[Law]) -> Law:
    """The sum of two numbers; in a loop over rows, one may be what the rows before have added up."""
    if pair.name == "sub" and pair.whole.outvars[0].aval.dtype.kind == "u":
        return any_function(pair, laws)
    totals = [law for law in laws if law.kind is Kind.TOTAL]
    if len(totals) != 1 or (pair.name == "sub" and laws[1].kind is Kind.TOTAL):
        return add_laws(pair, laws)
    added = [law for law in laws if law.kind is not Kind.TOTAL and law.kind is not Kind.ZERO]
    if not added:
        return totals[0]
    if any(law.kind is not Kind.SAME for law in added):
        return pair.mixed(_why_not(laws))
    # A total that nothing was added to has the scale 0.
    if totals[0].scale and not is_close(totals[0].scale, added[0].scale):
        return pair.mixed("adds numbers that grow with the number of rows to others that do not")
    return Law(kind=Kind.TOTAL, carry=totals[0].carry, scale=added[0].scale)


def multiply_laws(pair: PairedEquation, laws: list[Law]) -> Law:
    """Products: multiples of both; a sum times what rows do not change."""
    return _product(pair, laws, [law.scale for law in laws])


def divide_laws(pair: PairedEquation, laws: list[Law]) -> Law:
    """Quotients: by what rows do not change, or row by row."""
    if pair.whole.outvars[0].aval.dtype.kind in "iub":
        return any_function(pair, laws)
    if laws[1].kind in (Kind.SUM, Kind.MAX, Kind.TOTAL):
        return pair.mixed("divides by a sum over rows" if laws[1].kind is Kind.SUM else _why_not(laws))
    if laws[1].kind is Kind.ZERO:
        return any_function(pair, laws)
    return _product(pair, laws, [laws[0].scale, 1 / laws[1].scale])


def _product(pair: PairedEquation, laws: list[Law], scales: list[float]) -> Law:
    if sum(law.kind is Kind.SUM for law in laws) > 1:
        return pair.mixed("multiplies sums over rows with each other")
    if any(law.kind in (Kind.MAX, Kind.TOTAL) for law in laws):
        return pair.mixed(_why_not(laws))
    frame = find_frame(pair, laws)
    if frame.is_mixed:
        return frame
    scale = scales[0] * scales[1]
    if any(law.kind is Kind.ZERO for law in laws):
        # Zeros stay zeros, and over nothing they are what the rows below make of them.
        return ZERO if pair.name == "mul" else frame
    if frame.kind is Kind.SUM:
        return sums(scale)
    return Law(kind=frame.kind, scale=scale, dim=frame.dim, outer=frame.outer, order=frame.order)


def _power(exponent: float) -> LawRule:
    """A function that takes multiples to multiples of its own."""

    def rule(pair: PairedEquation, laws: list[Law]) -> Law:
        (law,) = laws
        if law.kind in (Kind.SAME, Kind.ROWS) and law.scale > 0:
            return Law(kind=law.kind, scale=law.scale**exponent, dim=law.dim, outer=law.outer, order=law.order)
        return any_function(pair, laws)

    return rule


def _integer_power(pair: PairedEquation, laws: list[Law]) -> Law:
    if not pair.same_params("y"):
        return pair.mixed("raises to a power that depends on the number of rows")
    return _power(pair.whole.params["y"])(pair, laws)


def compare_laws(pair: PairedEquation, laws: list[Law]) -> Law:
    """Comparisons, of equal positive multiples too."""
    others = [law for law in laws if law.kind is not Kind.ZERO]
    is_plain = all(law.kind in (Kind.SAME, Kind.ROWS) and law.scale > 0 for law in others)
    if is_plain and all(is_close(law.scale, others[0].scale) for law in others):
        frame = find_frame(pair, laws)
        return frame
    return any_function(pair, laws)


def extremes(pair: PairedEquation, laws: list[Law]) -> Law:
    """The larger or smaller of two: equal positive multiples stay such."""
    others = [law for law in laws if law.kind is not Kind.ZERO]
    is_plain = all(law.kind in (Kind.SAME, Kind.ROWS) and law.scale > 0 for law in others)
    if others and is_plain and all(is_close(law.scale, others[0].scale) for law in others):
        return find_frame(pair, laws).scaled(others[0].scale)
    return any_function(pair, laws)


def _select(pair: PairedEquation, laws: list[Law]) -> Law:
    """A choice that is read as it is, among equal multiples."""
    which, *cases = laws
    if not _has_values([which]):
        return pair.mixed("chooses by a sum over rows" if which.kind is Kind.SUM else _why_not([which]))
    if any(law.kind is Kind.MAX for law in cases):
        return pair.mixed("computes with the maximum over all rows")
    chosen = add_laws(pair, cases)
    if chosen.is_mixed or chosen.kind is Kind.TOTAL:
        return chosen if chosen.is_mixed else pair.mixed(_why_not(cases))
    if chosen.kind is Kind.SUM:
        return chosen if which.kind is Kind.SAME or which.kind is Kind.ZERO else pair.mixed(_SUMS)
    if chosen.kind is Kind.ZERO:
        return ZERO
    frame = find_frame(pair, [which, chosen])
    return frame if frame.is_mixed else frame.scaled(chosen.scale)


def _convert(pair: PairedEquation, laws: list[Law]) -> Law:
    """Between kinds of numbers: a sum stays one unless fractions are dropped or numbers become truths."""
    before, after = pair.whole.invars[0].aval.dtype, pair.whole.outvars[0].aval.dtype
    if before.kind == "b" and laws[0].kind is Kind.MAX:
        return laws[0]
    wraps = before.kind in "iu" and before.itemsize < 4 and (after.kind not in "iu" or after.itemsize > before.itemsize)
    if wraps and not _has_values(laws):
        return pair.mixed("converts a sum of small integers, which may wrap around")
    is_truncated = after.kind == "b" or (after.kind in "iu" and before.kind not in "iub")
    return any_function(pair, laws) if is_truncated else keep(pair, laws)


def _one_to_one(pair: PairedEquation, states: list) -> list:
    """Output i is input i."""
    return list(states)


def _bitcast(pair: PairedEquation, laws: list[Law]) -> Law:
    """Between numbers of as many bits: others join elements, or take them apart."""
    before, after = pair.whole.invars[0].aval.shape, pair.whole.outvars[0].aval.shape
    return any_function(pair, laws) if before == after else pair.mixed("casts bits to a type of another width")


def _same(pair: PairedEquation, states: list) -> list:
    """Values that follow from the machine alone."""
    del states
    return [Law(kind=Kind.SAME)] * len(pair.whole.outvars)


_LINEAR = "neg conj real imag reduce_precision"
_KEPT = """
    copy copy_p stop_gradient sharding_constraint layout_constraint reshard pvary name accumulated stage
    pbroadcast optimization_barrier device_put pipeline_yield pcast
"""
_ADD = "add add_any sub"
_COMPARE = "eq ne ge gt le lt eq_to le_to lt_to"
_ANY = """
    acos acosh asin asinh atan atanh ceil clz cos cosh digamma erf erf_inv erfc exp exp2 expm1 floor
    is_finite lgamma log log1p log2 logistic not one_minus_square population_count round sin sinh tan tanh
    and atan2 clamp complex mulhi nextafter or pow rem shift_left shift_right_arithmetic shift_right_logical xor
    bessel_i0e bessel_i1e igamma igamma_grad_a igammac polygamma regularized_incomplete_beta zeta
"""
_POWERS = {"sqrt": 0.5, "rsqrt": -0.5, "cbrt": 1 / 3, "square": 2.0, "abs": 1.0, "sign": 0.0}

RULES: dict[str, Rule] = (
    rules_for(_ANY, of_laws(any_function))
    | rules_for(_LINEAR, of_laws(apply_linear))
    | rules_for(_ADD, of_laws(accumulate))
    | rules_for(_COMPARE, of_laws(compare_laws))
    | rules_for("max min", of_laws(extremes))
    | {name: of_laws(_power(exponent)) for name, exponent in _POWERS.items()}
    | rules_for(_KEPT, _one_to_one)
    | rules_for("platform_index", _same)
    | {
        "mul": of_laws(multiply_laws),
        "div": of_laws(divide_laws),
        "integer_pow": of_laws(_integer_power),
        "select_n": of_laws(_select),
        "convert_element_type": of_laws(_convert),
        "bitcast_convert_type": of_laws(_bitcast),
    }
)
