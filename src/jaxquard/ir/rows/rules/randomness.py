"""Keys and random numbers.

A key for each row gives each row numbers of its own, however many others there are. One key for all rows gives numbers
that follow from how many there are: as a rule nothing can be said of them. Where each part draws from a key of its own
(`draws_rows`), they are rows that the parts draw, by agreement.
"""

from jaxquard.ir.dependence.rules.randomness import is_each_by_itself
from jaxquard.ir.rows.law import SAME, Kind, Law, rows
from jaxquard.ir.rows.paired import PairedEquation, Rule, of_laws, rules_for
from jaxquard.ir.rows.rules.elementwise import any_function

DRAWS = "draws random numbers for all rows from one key"


def _draw(pair: PairedEquation, laws: list[Law]) -> Law:
    """Keys to numbers or to more keys; the dims of the keys come first, then those of what is drawn."""
    (law,) = laws
    if law.kind not in (Kind.SAME, Kind.ROWS, Kind.ZERO) or not law.has_scale(1.0):
        return pair.mixed("draws random numbers from a sum over rows")
    if law.kind is Kind.ROWS:
        is_batch = is_each_by_itself(pair.whole) and pair.out_row_dim() == law.dim
        return rows(law.dim, outer=law.outer, order=law.order) if is_batch else pair.mixed(DRAWS)
    if pair.has_same_out_shapes():
        return SAME
    dim = pair.out_row_dim()
    return rows(dim) if pair.draws_rows and dim is not None else pair.mixed(DRAWS)


def _one_for_one(pair: PairedEquation, laws: list[Law]) -> Law:
    found = any_function(pair, laws)
    is_alone = is_each_by_itself(pair.whole) or found.kind is not Kind.ROWS
    return found if is_alone else pair.mixed(DRAWS)


def _gamma(pair: PairedEquation, laws: list[Law]) -> Law:
    """Keys and shapes of distributions to numbers; one key is split over all of them."""
    key, shape = laws
    if key.kind is Kind.ROWS or not _is_value(key) or not _is_value(shape):
        return _one_for_one(pair, laws)
    if pair.has_same_out_shapes():
        return SAME
    dim = pair.out_row_dim()
    is_in_order = shape.kind is not Kind.ROWS or (shape.outer in (None, 1) and shape.order is None)
    return rows(dim) if pair.draws_rows and dim is not None and is_in_order else pair.mixed(DRAWS)


def _is_value(law: Law) -> bool:
    return law.kind in (Kind.SAME, Kind.ROWS, Kind.ZERO) and law.has_scale(1.0)


RULES: dict[str, Rule] = (
    rules_for("random_bits random_split random_unwrap random_wrap", of_laws(_draw))
    | rules_for("random_clone random_fold_in random_seed threefry2x32", of_laws(_one_for_one))
    | {"random_gamma": of_laws(_gamma)}
)
